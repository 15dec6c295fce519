"""The protocol buffer classes of TensorFlow's data files: `tf.train.Example`, `TensorProto` and others.

The fields are described here, in a separate descriptor pool, so that they do not collide with TensorFlow's generated
classes in the same process. The encoded bytes are identical.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from mirrored.extras import load

_OPTIONAL, _REPEATED = 1, 3
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _BOOL, _STRING, _MESSAGE, _BYTES, _UINT32 = 1, 2, 3, 4, 5, 8, 9, 11, 12, 13

# message -> (field, number, label, type, message type). Repeated fields of numbers are packed.
_FIELDS: Final[dict[str, tuple[tuple[str, int, int, int, str], ...]]] = {
    "BytesList": (("value", 1, _REPEATED, _BYTES, ""),),
    "FloatList": (("value", 1, _REPEATED, _FLOAT, ""),),
    "Int64List": (("value", 1, _REPEATED, _INT64, ""),),
    "Feature": (
        ("bytes_list", 1, _OPTIONAL, _MESSAGE, "BytesList"),
        ("float_list", 2, _OPTIONAL, _MESSAGE, "FloatList"),
        ("int64_list", 3, _OPTIONAL, _MESSAGE, "Int64List"),
    ),
    "FeatureList": (("feature", 1, _REPEATED, _MESSAGE, "Feature"),),
    "Features": (("feature", 1, _REPEATED, _MESSAGE, "Features.FeatureEntry"),),
    "FeatureLists": (("feature_list", 1, _REPEATED, _MESSAGE, "FeatureLists.FeatureListEntry"),),
    "Example": (("features", 1, _OPTIONAL, _MESSAGE, "Features"),),
    "SequenceExample": (
        ("context", 1, _OPTIONAL, _MESSAGE, "Features"),
        ("feature_lists", 2, _OPTIONAL, _MESSAGE, "FeatureLists"),
    ),
    "TensorShapeProto": (("dim", 2, _REPEATED, _MESSAGE, "TensorShapeProto.Dim"),),
    "TensorProto": (
        ("dtype", 1, _OPTIONAL, _INT32, ""),
        ("tensor_shape", 2, _OPTIONAL, _MESSAGE, "TensorShapeProto"),
        ("version_number", 3, _OPTIONAL, _INT32, ""),
        ("tensor_content", 4, _OPTIONAL, _BYTES, ""),
        ("float_val", 5, _REPEATED, _FLOAT, ""),
        ("double_val", 6, _REPEATED, _DOUBLE, ""),
        ("int_val", 7, _REPEATED, _INT32, ""),
        ("string_val", 8, _REPEATED, _BYTES, ""),
        ("scomplex_val", 9, _REPEATED, _FLOAT, ""),
        ("int64_val", 10, _REPEATED, _INT64, ""),
        ("bool_val", 11, _REPEATED, _BOOL, ""),
        ("dcomplex_val", 12, _REPEATED, _DOUBLE, ""),
        ("half_val", 13, _REPEATED, _INT32, ""),
        ("uint32_val", 16, _REPEATED, _UINT32, ""),
        ("uint64_val", 17, _REPEATED, _UINT64, ""),
    ),
}
_MAPS: Final = {"Features": ("FeatureEntry", "Feature"), "FeatureLists": ("FeatureListEntry", "FeatureList")}
_PACKAGE: Final = "tensorflow"


@functools.cache
def message(name: str) -> Any:
    """Returns the protocol buffer class with a given name, such as ``"Example"``.

    Raises:
        MissingExtraError: protobuf is not installed.
    """
    factory = load("google.protobuf.message_factory", called=f"tf.train.{name}", extra="data", package="protobuf")
    return factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def parsed(name: str, text: bytes) -> Any:
    """Parses bytes as the protocol buffer message with a given name, such as ``"Example"``.

    Raises:
        ValueError: The bytes are not such a message.
    """
    found = message(name)()
    messages = load("google.protobuf.message", called=f"tf.train.{name}", extra="data", package="protobuf")
    try:
        found.ParseFromString(text)
    except messages.DecodeError as error:
        raise ValueError(str(error)) from error
    return found


@functools.cache
def _pool() -> Any:
    described = load("google.protobuf.descriptor_pb2", called="tf.train.Example", extra="data", package="protobuf")
    pools = load("google.protobuf.descriptor_pool", called="tf.train.Example", extra="data", package="protobuf")
    file = described.FileDescriptorProto(name="mirrored/example.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        entry = file.message_type.add(name=name)
        if name == "Feature":
            entry.oneof_decl.add(name="kind")
        for field in fields:
            _add_field(entry, *field, oneof=name == "Feature")
        if name in _MAPS:
            _add_map(entry, *_MAPS[name])
        if name == "TensorShapeProto":
            dim = entry.nested_type.add(name="Dim")
            _add_field(dim, "size", 1, _OPTIONAL, _INT64, "")
            _add_field(dim, "name", 2, _OPTIONAL, _STRING, "")
            _add_field(entry, "unknown_rank", 3, _OPTIONAL, _BOOL, "")
    pool = pools.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(entry: Any, name: str, number: int, label: int, kind: int, of: str, *, oneof: bool = False) -> None:
    field = entry.field.add(name=name, number=number, label=label, type=kind)
    if of:
        field.type_name = f".{_PACKAGE}.{of}"
    if oneof:
        field.oneof_index = 0


def _add_map(entry: Any, name: str, value: str) -> None:
    pair = entry.nested_type.add(name=name)
    pair.options.map_entry = True
    _add_field(pair, "key", 1, _OPTIONAL, _STRING, "")
    _add_field(pair, "value", 2, _OPTIONAL, _MESSAGE, value)
