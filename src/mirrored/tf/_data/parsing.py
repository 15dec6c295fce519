"""`tf.io.parse_example` and similar functions, which parse the bytes of data files into NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from mirrored._typing import DTypeLike, Operand
from mirrored.data.elements import keeps_values
from mirrored.tf import _dtypes
from mirrored.tf._data.host_arrays import Texts, as_bytes_array, is_text, on_host
from mirrored.tf._data.messages import message, parsed
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._tensors import as_tensor

_LISTS: Final = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_TYPED: Final = {"float32": "float_val", "float64": "double_val", "int32": "int_val", "int64": "int64_val",
                 "bool": "bool_val", "string": "string_val", "uint8": "int_val", "int8": "int_val", "int16": "int_val",
                 "uint16": "int_val", "uint32": "uint32_val", "uint64": "uint64_val", "complex64": "scomplex_val",
                 "complex128": "dcomplex_val", "float16": "half_val", "bfloat16": "half_val"}  # fmt: skip


class FixedLenFeature(NamedTuple):
    """The description of a feature that has the same number of values in every `tf.train.Example`.

    Attributes:
        shape: The shape of its values.
        dtype: float32, int64 or string.
        default_value: The value for examples without the feature; None makes it required.
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


class FixedLenSequenceFeature(NamedTuple):
    """The description of a feature whose number of values varies between `tf.train.Example` messages.

    The feature consists of rows of one shape; `parse_example` pads them to the longest example.

    Attributes:
        shape: The shape of a row.
        dtype: float32, int64 or string.
        allow_missing: Must be True: an example without the feature has no rows.
        default_value: The padding; by default zeros or empty strings.
    """

    shape: Sequence[int]
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


def parse_single_example(
    serialized: Texts, features: Mapping[str, Any], example_names: object = None, name: str | None = None
) -> dict[str, Any]:
    """Parses one serialized `tf.train.Example` into a dict of features.

    Context: any; on the host, so not inside tf.function.

    Args:
        serialized: The bytes.
        features: A `FixedLenFeature` or `FixedLenSequenceFeature` for each name.
        example_names: Accepted and ignored.
        name: Accepted and ignored.

    Returns:
        NumPy arrays by name; strings are bytes.

    Raises:
        InvalidArgumentError: The bytes are not an example, or a feature is missing or has another type or size.

    TensorFlow: `tf.io.parse_single_example`.
    """
    del example_names, name
    wanted = _checked(features)
    found = _features_of(_scalar(serialized, "tf.io.parse_single_example"), "tf.io.parse_single_example")
    return {key: on_host(_value(found, key, feature)) for key, feature in wanted.items()}


def parse_example(
    serialized: Texts, features: Mapping[str, Any], example_names: object = None, name: str | None = None
) -> dict[str, Any]:
    """Parses a batch of serialized `tf.train.Example` messages into a dict of stacked features.

    Args:
        serialized: A vector of bytes; a single one is parsed like `parse_single_example`.
        features: A `FixedLenFeature` or `FixedLenSequenceFeature` for each name.
        example_names: Accepted and ignored.
        name: Accepted and ignored.

    Raises:
        InvalidArgumentError: As for `parse_single_example`.

    TensorFlow: `tf.io.parse_example`.
    """
    del example_names, name
    texts = as_bytes_array(serialized)
    if texts.ndim == 0:
        return parse_single_example(serialized, features)
    wanted = _checked(features)
    messages = [_features_of(text, "tf.io.parse_example") for text in texts]
    return {
        key: on_host(_stacked([_value(found, key, feature) for found in messages], feature))
        for key, feature in wanted.items()
    }


def _scalar(serialized: Texts, called: str) -> bytes:
    texts = as_bytes_array(serialized)
    if texts.ndim != 0:
        raise InvalidArgumentError.of(
            called,
            found=f"`serialized` has the shape {list(texts.shape)}",
            rule="`serialized` must be a single string",
            remedy="pass one string at a time, or use tf.io.parse_example for a batch of examples",
        )
    return bytes(texts[()])


def _checked(features: Mapping[str, Any]) -> Mapping[str, Any]:
    if not features:
        raise ValueError("Invalid argument: features cannot be empty.")
    for key, feature in features.items():
        if not isinstance(feature, FixedLenFeature | FixedLenSequenceFeature):
            raise ValueError(
                f"Invalid feature {key}: {feature}: tf.io.FixedLenFeature and tf.io.FixedLenSequenceFeature are known"
            )
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise ValueError("Unsupported: FixedLenSequenceFeature requires allow_missing to be True.")
        if _dtypes.as_dtype(feature.dtype).name not in _LISTS:
            raise InvalidArgumentError.of(
                "tf.io.parse_example",
                found=f"the feature {key!r} is requested with dtype {feature.dtype}",
                rule="features can only be float32, int64 or string",
                remedy="parse the feature as one of these, and convert it with tf.cast",
            )
        _check_default(feature.default_value, _dtypes.as_dtype(feature.dtype).dtype, key)
    return features


def _features_of(text: bytes, called: str) -> Any:
    try:
        example = parsed("Example", text)
    except ValueError as error:
        raise InvalidArgumentError.of(
            called,
            found=f"the bytes are not a tf.train.Example: {text[:40]!r} ({error})",
            rule="`serialized` must be the result of tf.train.Example.SerializeToString()",
            remedy="check what was written, and the compression_type of the dataset",
        ) from error
    return example.features.feature


def _value(found: Mapping[str, Any], key: str, feature: FixedLenFeature | FixedLenSequenceFeature) -> Any:
    dtype = _dtypes.as_dtype(feature.dtype)
    shape = tuple(int(dim) for dim in feature.shape)
    kind = found[key].WhichOneof("kind") if key in found else None
    if kind is None:
        return _absent(key, feature, shape, dtype)
    if kind != _LISTS[dtype.name]:
        raise _feature_error(
            key, f"is a {kind}, not a {_LISTS[dtype.name]}", f"request the dtype that a {kind} contains"
        )
    values = getattr(found[key], kind).value
    array = np.empty(len(values), dtype.dtype)
    array[:] = values
    if isinstance(feature, FixedLenSequenceFeature):
        row = int(np.prod(shape, dtype=np.int64))
        if row == 0 or len(values) % row:
            fault = f"has {len(values)} values, not a multiple of the shape {list(shape)}"
            raise _feature_error(key, fault, "pass the shape of one row")
        return array.reshape(-1, *shape)
    if len(values) != int(np.prod(shape, dtype=np.int64)):
        fault = f"has {len(values)} values, not those of the shape {list(shape)}"
        raise _feature_error(
            key, fault, "pass the shape that was written, or a FixedLenSequenceFeature if the number varies"
        )
    return array.reshape(shape)[()]


def _absent(
    key: str, feature: FixedLenFeature | FixedLenSequenceFeature, shape: tuple[int, ...], dtype: _dtypes.DType
) -> Any:
    if isinstance(feature, FixedLenSequenceFeature):
        return np.empty((0, *shape), dtype.dtype)
    if feature.default_value is None:
        raise _feature_error(
            key, "is missing, and has no default_value", "pass a default_value, or a FixedLenSequenceFeature"
        )
    default = as_bytes_array(feature.default_value) if dtype is _dtypes.string else np.asarray(feature.default_value)
    if default.size != int(np.prod(shape, dtype=np.int64)):
        fault = f"is missing, and has a default_value of shape {list(default.shape)}, not {list(shape)}"
        raise _feature_error(key, fault, "pass a default_value of the shape of the feature")
    return default.astype(dtype.dtype).reshape(shape)[()]


def _check_default(value: Any, dtype: np.dtype[Any], key: str) -> None:
    default = np.asarray(value)
    if value is None or not default.size:
        return
    has_text = default.dtype.kind in "OSU"
    if has_text != dtype.hasobject or not (has_text or keeps_values(default, dtype)):
        kind = "string" if dtype.hasobject else dtype.name
        fault = f"has the default_value {default.tolist()}, which is not of its dtype, {kind}"
        raise _feature_error(key, fault, "pass a default_value of the dtype of the feature")


def _feature_error(key: str, found: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(
        "tf.io.parse_example",
        found=f"the feature {key!r} {found}",
        rule="every example must have the requested features, with the requested types and shapes",
        remedy=remedy,
    )


def _stacked(values: list[Any], feature: FixedLenFeature | FixedLenSequenceFeature) -> Any:
    dtype = _dtypes.as_dtype(feature.dtype).dtype
    shape = tuple(int(dim) for dim in feature.shape)
    if isinstance(feature, FixedLenFeature):
        made = np.empty((len(values), *shape), dtype)
        for row, value in enumerate(values):
            made[row] = value
        return made
    longest = max((len(value) for value in values), default=0)
    default = feature.default_value
    if default is None:
        default = b"" if dtype.hasobject else 0
    padding = as_bytes_array(default) if dtype.hasobject else default  # texts of type str, too, become bytes
    padded = np.full((len(values), longest, *shape), padding, dtype)
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
    return padded


def serialize_tensor(tensor: Operand | Texts, name: str | None = None) -> Any:
    """Serializes a tensor to bytes, from which `parse_tensor` restores it.

    TensorFlow: `tf.io.serialize_tensor`; the bytes are identical.
    """
    del name
    array = _array_of(tensor)
    dtype = _dtypes.as_dtype(array.dtype)
    proto = message("TensorProto")(dtype=dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype is _dtypes.string:
        proto.string_val.extend(array.ravel().tolist())
    else:
        proto.tensor_content = array.tobytes()
    return on_host(proto.SerializeToString())


def _array_of(tensor: Operand | Texts) -> np.ndarray[Any, Any]:
    """Converts a tensor to a NumPy array of bytes objects, or of numbers in native byte order."""
    if is_text(tensor):
        return as_bytes_array(tensor)  # type: ignore[arg-type]
    given: Any = tensor
    array = np.asarray(given if isinstance(given, (np.ndarray, np.generic)) else as_tensor(given))
    return as_bytes_array(array) if array.dtype.hasobject else array.astype(array.dtype.newbyteorder("="), copy=False)


def parse_tensor(serialized: Texts, out_type: DTypeLike, name: str | None = None) -> Any:
    """Restores a tensor, as a NumPy array, from the bytes that `serialize_tensor` returned.

    Raises:
        InvalidArgumentError: The bytes are not a tensor, or the tensor has another dtype.

    TensorFlow: `tf.io.parse_tensor`.
    """
    del name
    wanted = _dtypes.as_dtype(out_type)
    text = _scalar(serialized, "tf.io.parse_tensor")
    try:
        proto = parsed("TensorProto", text)
    except ValueError as error:
        found = f"the bytes are not a serialized tensor ({error})"
        raise _no_tensor_error(found, "pass the unchanged result of tf.io.serialize_tensor") from error
    code = {one.as_datatype_enum: one for one in _dtypes.NAMES.values()}.get(proto.dtype)
    if code != wanted:
        raise _no_tensor_error(
            f"the tensor has dtype {code}, not {wanted}", "pass the out_type with which the tensor was written"
        )
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_content:
        return on_host(np.frombuffer(proto.tensor_content, wanted.dtype).reshape(shape).copy())
    values = _numbers(list(getattr(proto, _TYPED[wanted.name])), wanted)
    count = int(np.prod(shape, dtype=np.int64))
    if not values and count:
        values = [b"" if wanted is _dtypes.string else 0]
    array = np.empty(count, wanted.dtype)
    # TensorFlow writes repetitions of the last value only once.
    array[:] = (values + values[-1:] * count)[:count]
    return on_host(array.reshape(shape))


def _numbers(values: list[Any], dtype: _dtypes.DType) -> list[Any]:
    """Decodes numbers from a `TensorProto`, which stores 16-bit floats as integers and complex numbers as pairs."""
    if dtype.is_complex:
        return [complex(*parts) for parts in zip(values[::2], values[1::2], strict=True)]
    return list(np.array(values, np.uint16).view(dtype.dtype)) if _TYPED[dtype.name] == "half_val" else values


def _no_tensor_error(found: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(
        "tf.io.parse_tensor",
        found=found,
        rule="`serialized` must be the result of tf.io.serialize_tensor for a tensor of dtype `out_type`",
        remedy=remedy,
    )


def decode_raw(input_bytes: Texts, out_type: DTypeLike, little_endian: bool = True, name: str | None = None) -> Any:
    """Reinterprets the bytes of strings as numbers, along a new last dimension.

    Raises:
        InvalidArgumentError: The number of bytes is not a multiple of the dtype's size, or the lengths differ.

    TensorFlow: `tf.io.decode_raw`.
    """
    del name
    texts = as_bytes_array(input_bytes)
    dtype = _dtypes.as_dtype(out_type).dtype
    lengths = {len(text) for text in texts.ravel()}
    if len(lengths) > 1:
        raise InvalidArgumentError.of(
            "tf.io.decode_raw",
            found=f"the strings have {sorted(lengths)} bytes",
            rule="all strings must have the same length",
            remedy="decode strings of different lengths one at a time",
        )
    if any(length % dtype.itemsize for length in lengths):
        raise InvalidArgumentError.of(
            "tf.io.decode_raw",
            found=f"a string has {max(lengths)} bytes",
            rule=f"the number of bytes must be a multiple of {dtype.itemsize}, the size of {dtype}",
            remedy="pass the dtype with which the bytes were written",
        )
    data = np.frombuffer(b"".join(texts.ravel()), dtype.newbyteorder("<" if little_endian else ">"))
    return on_host(data.astype(dtype).reshape(*texts.shape, -1))


NAMES: Final[dict[str, Any]] = {
    one.__name__: one
    for one in (
        FixedLenFeature, FixedLenSequenceFeature, decode_raw, parse_example, parse_single_example, parse_tensor,
        serialize_tensor,
    )
}  # fmt: skip
