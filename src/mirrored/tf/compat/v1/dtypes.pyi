"""Type stub of `tf.compat.v1.dtypes`, written by tools/tf_stubs.py."""

from mirrored.tf import DType as DType
from mirrored.tf import DType as _DType
from mirrored.tf import as_dtype as as_dtype
from mirrored.tf import cast as cast
from mirrored.tf import complex as complex
from mirrored.tf.dtypes import saturate_cast as saturate_cast

bfloat16: _DType
bool: _DType
complex128: _DType
complex64: _DType
double: _DType
float16: _DType
float32: _DType
float64: _DType
half: _DType
int16: _DType
int32: _DType
int64: _DType
int8: _DType
string: _DType
uint16: _DType
uint32: _DType
uint64: _DType
uint8: _DType
