"""Encodes tensors as the `TensorProto` messages of TensorBoard's event files."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mirrored.errors import ArgumentError
from mirrored.tf._data.host_arrays import as_bytes_array, is_text

_TYPES: Final = {
    "bool": "DT_BOOL", "bfloat16": "DT_BFLOAT16", "complex64": "DT_COMPLEX64", "complex128": "DT_COMPLEX128",
    "float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE", "int8": "DT_INT8", "int16": "DT_INT16",
    "int32": "DT_INT32", "int64": "DT_INT64", "object": "DT_STRING", "uint8": "DT_UINT8", "uint16": "DT_UINT16",
}  # fmt: skip


def check_writable(dtype: np.dtype[Any]) -> None:
    """Raises an error if event files cannot contain tensors of a dtype.

    Raises:
        ArgumentError: They cannot.
    """
    if dtype.name not in _TYPES:
        raise ArgumentError(
            "tf.summary.write",
            found=f"a tensor of dtype {dtype}",
            rule=f"the format of event files has the dtypes {', '.join(sorted(_TYPES))} (strings)",
            remedy="cast the tensor to one of them: tf.cast(tensor, tf.int64)",
        )


def tensor_proto(module: Any, tensor: Any) -> Any:
    """Returns a tensor or strings as a `TensorProto` of the module `tensorboardX.summary`."""
    array = as_bytes_array(tensor) if is_text(tensor) else np.asarray(tensor)
    check_writable(array.dtype)
    kind = module.TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name
    shape = module.TensorShapeProto(dim=[module.TensorShapeProto.Dim(size=size) for size in array.shape])
    proto = module.TensorProto(dtype=kind[_TYPES[array.dtype.name]].number, tensor_shape=shape)
    if array.dtype.hasobject:
        proto.string_val.extend(array.ravel().tolist())
    else:
        proto.tensor_content = array.astype(array.dtype.newbyteorder("="), copy=False).tobytes()
    return proto
