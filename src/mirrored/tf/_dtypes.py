"""`tf.DType`: data types that print and compare like TensorFlow's, and that JAX accepts as dtypes.

A `DType` has a `dtype` attribute, so that NumPy and JAX accept it wherever they accept a dtype. NumPy dtypes compare
equal to it, so that ``x.dtype == tf.float32`` is true for a `jax.Array`.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike

_CODES: Final = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7, "complex64": 8,
    "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
_JAX_NAMES: Final = {"bool": "bool_"}


class DType:
    """A data type such as ``tf.float32``, which JAX accepts as a dtype.

    ``tf.string`` is for strings, which stay on the host.

    Context: any.

    Args:
        name: The name in NumPy or `ml_dtypes`.

    Example:
        >>> import mirrored.tf as tf
        >>> tf.float32, tf.float32.name, tf.float32.is_floating, tf.float32 == "float32"
        (tf.float32, 'float32', True, True)

    TensorFlow: `tf.DType`. Without JAX's 64-bit mode (``JAX_ENABLE_X64=1``), an array requested with a 64-bit type gets
    the 32-bit type of the same kind.
    """

    __slots__ = ("_name", "dtype")

    def __init__(self, name: str) -> None:
        self._name = name
        self.dtype: np.dtype[Any] = np.dtype(object if name == "string" else getattr(jnp, _JAX_NAMES.get(name, name)))

    @property
    def name(self) -> str:
        """The name of the type without the ``tf.`` prefix, such as ``"float32"``."""
        return self._name

    @property
    def as_numpy_dtype(self) -> type[Any]:
        """The NumPy scalar type that corresponds to this type, such as `numpy.float32`."""
        return self.dtype.type

    @property
    def as_datatype_enum(self) -> int:
        """This type's number in TensorFlow's file formats."""
        return _CODES[self._name]

    @property
    def base_dtype(self) -> DType:
        """The type itself; TensorFlow's reference types do not exist here."""
        return self

    @property
    def real_dtype(self) -> DType:
        """The type of the real part of a complex type; for any other type, the type itself."""
        return {"complex64": float32, "complex128": float64}.get(self._name, self)

    @property
    def is_floating(self) -> bool:
        """Whether this is a real floating-point type."""
        return bool(jnp.issubdtype(self.dtype, jnp.floating))

    @property
    def is_complex(self) -> bool:
        """Whether this is a complex type."""
        return self.dtype.kind == "c"

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type."""
        return self.dtype.kind in "iu"

    @property
    def is_unsigned(self) -> bool:
        """Whether this is an unsigned integer type."""
        return self.dtype.kind == "u"

    @property
    def is_bool(self) -> bool:
        """Whether this is the boolean type."""
        return self.dtype.kind == "b"

    @property
    def is_numpy_compatible(self) -> bool:
        """Whether NumPy supports the type: always True here."""
        return True

    @property
    def size(self) -> int:
        """The size of one element of this type, in bytes."""
        return int(self.dtype.itemsize)

    @property
    def min(self) -> Any:
        """The smallest finite value that this type can represent."""
        return self._limits()[0]

    @property
    def max(self) -> Any:
        """The largest finite value that this type can represent."""
        return self._limits()[1]

    @property
    def limits(self) -> tuple[Any, Any]:
        """The range of image pixel values in this type: (0, largest value) for integers, (0, 1) for floats."""
        return (0, self.max) if self.is_integer else (0, 1)

    def is_compatible_with(self, other: DTypeLike) -> bool:
        """Returns whether another type is the same type as this one."""
        return self == as_dtype(other)

    def _limits(self) -> tuple[Any, Any]:
        if self.is_bool:
            return False, True
        info: Any = jnp.iinfo(self.dtype) if self.is_integer else jnp.finfo(self.dtype)  # type: ignore[no-untyped-call]
        return self.as_numpy_dtype(info.min), self.as_numpy_dtype(info.max)

    def __eq__(self, other: object) -> bool:
        """Returns whether `other`, a TensorFlow, NumPy or JAX dtype or a dtype name, denotes this type."""
        if isinstance(other, DType):
            return self._name == other._name
        if other is None:
            return False
        try:
            return bool(np.dtype(_unprefixed(other)) == self.dtype)
        except TypeError:
            return False

    def __hash__(self) -> int:
        """Returns the hash of the NumPy dtype that compares equal to this type."""
        return hash(self.dtype)

    def __repr__(self) -> str:
        """Returns the name of the type with the ``tf.`` prefix, such as ``tf.float32``."""
        return f"tf.{self._name}"

    def __str__(self) -> str:
        """Returns the name of the type in TensorFlow's format, such as ``<dtype: 'float32'>``."""
        return f"<dtype: '{self._name}'>"

    def __int__(self) -> int:
        """Returns the number of the type in TensorFlow's file formats."""
        return self.as_datatype_enum

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the type by name."""
        return as_dtype, (self._name,)


def _unprefixed(name: object) -> Any:
    return name.removeprefix("tf.") if isinstance(name, str) else name


float16 = DType("float16")
half = float16
bfloat16 = DType("bfloat16")
float32 = DType("float32")
float64 = DType("float64")
double = float64
int8 = DType("int8")
int16 = DType("int16")
int32 = DType("int32")
int64 = DType("int64")
uint8 = DType("uint8")
uint16 = DType("uint16")
uint32 = DType("uint32")
uint64 = DType("uint64")
bool_ = DType("bool")
complex64 = DType("complex64")
complex128 = DType("complex128")
string = DType("string")

_BY_NAME: Final = {
    one.name: one
    for one in (
        float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_,
        complex64, complex128, string,
    )
}  # fmt: skip

NAMES: Final = {**{name: one for name, one in _BY_NAME.items()}, "half": half, "double": double}


def as_dtype(type_value: DTypeLike | None) -> DType:
    """Converts a NumPy dtype, a JAX dtype or a name such as ``"float32"`` to a `DType`.

    Args:
        type_value: A `DType`, a name, a NumPy or JAX dtype, or a Python type (``float`` is float32, ``int`` int32).

    Raises:
        TypeError: `mirrored.tf` has no such type.
    """
    if isinstance(type_value, DType):
        return type_value
    if type_value in (float, int, complex) and isinstance(type_value, type):
        return {float: float32, int: int32, complex: complex64}[type_value]
    if type_value is None:
        raise TypeError("Cannot convert the argument `type_value`: None to a TensorFlow DType.")
    name = (
        {"half": "float16", "double": "float64"}.get(_unprefixed(type_value), None)
        if isinstance(type_value, str)
        else None
    )
    try:
        found = _BY_NAME.get(name or _name_of(_unprefixed(type_value)))
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"Cannot convert the argument `type_value`: {type_value!r} to a TensorFlow DType.")
    return found


def _name_of(type_value: DTypeLike) -> str:
    if isinstance(type_value, str) and type_value == "string":
        return type_value
    name = np.dtype(type_value).name
    return "string" if name == "object" or name.startswith(("str", "bytes")) else name


def array_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the NumPy dtype of a JAX array that is created with a given TensorFlow dtype.

    Without JAX's x64 mode, it has 32 bits in place of 64.

    Raises:
        TypeError: It is the string type, which device arrays do not have.
    """
    if as_dtype(dtype) is string:
        raise TypeError("tensors hold numbers and booleans: strings stay on the host, as bytes, str or NumPy arrays")
    return np.dtype(jax.dtypes.canonicalize_dtype(as_dtype(dtype).dtype))
