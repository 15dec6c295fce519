"""NumPy arrays and strings in host memory that have the `numpy()` method of a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import jax
import numpy as np

from mirrored._jax.sequences import COMPARISONS, OPERATORS, beside
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree, ShapeLike
from mirrored.tf import _dtypes
from mirrored.tf._narrowed import is_narrowed
from mirrored.tf._rebinding import Rebinding
from mirrored.tf._shapes import Described, TensorShape
from mirrored.values.operators import SEQUENCES

Texts: TypeAlias = str | bytes | Sequence[str | bytes] | np.ndarray[Any, Any]
"""One or more strings."""


class HostArray(Rebinding, np.ndarray):  # type: ignore[type-arg]
    """A NumPy array in host memory with the methods `numpy`, `get_shape` and `set_shape` of a tensor.

    Strings, 64-bit integers, and the elements that functions of an input pipeline receive are such arrays.

    TensorFlow: A tensor. Operations of `mirrored.tf` accept it.
    """

    def numpy(self) -> Any:
        """Returns the data as a plain NumPy array, or as a NumPy scalar if the array has no dimensions."""
        return np.asarray(self)[()]

    # Its operators combine strings, which are bytes in TensorFlow, with str, and lists as tensors do.

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        """Returns an element or subarray; returns a single string as a `HostText`."""
        part = super().__getitem__(key)
        return HostText(part) if type(part) is bytes else part

    def _as_operand(self, other: Any) -> Any:
        """Converts the other operand of an operator: strings to bytes, and lists of numbers to this array's dtype."""
        if self.dtype.hasobject:
            return as_bytes_array(other) if is_text(other) else other
        return beside(other, self.dtype) if type(other) in SEQUENCES else other

    @property
    def shape(self) -> TensorShape:  # type: ignore[override]
        """The shape as a `TensorShape`, a tuple with TensorFlow's `as_list`, `rank` and similar attributes."""
        return TensorShape(super().shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        np.ndarray.shape.__set__(self, shape)  # type: ignore[attr-defined]

    def get_shape(self) -> TensorShape:
        """Returns the shape."""
        return self.shape

    def set_shape(self, shape: ShapeLike | None) -> None:
        """Checks that the array has the given shape; sets nothing, because an array's shape is always known.

        Raises:
            ValueError: The shape differs.
        """
        check_shape(self, shape)


def _operator(name: str) -> Callable[[HostArray, Any], Any]:
    of_arrays = getattr(np.ndarray, name)
    compares = name.strip("_") in COMPARISONS
    divides = name.strip("_") in ("truediv", "rtruediv")

    def method(self: HostArray, other: Any) -> Any:
        given = self._as_operand(other)
        if divides and _is_short(self) and _is_short(given):
            return of_arrays(self.astype(np.float32), given)
        result = of_arrays(self, given)
        return _truths(result) if compares else result

    method.__name__, method.__doc__ = name, of_arrays.__doc__
    return method


for _name in OPERATORS:
    setattr(HostArray, _name, _operator(_name))


class HostText(bytes):
    """A single string, as a bytes object with the methods of a tensor.

    TensorFlow: A scalar of `tf.string`.
    """

    __slots__ = ()
    __array_priority__ = 100  # NumPy arrays leave their comparisons with a HostText to it

    shape = TensorShape(())
    dtype = _dtypes.string

    def numpy(self) -> bytes:
        """Returns the string as a plain bytes object."""
        return bytes(self)

    __hash__ = bytes.__hash__

    def __add__(self, other: Any) -> Any:
        """Concatenates this string with another string, or with each element of an array of strings."""
        return on_host(bytes(self) + other.encode() if isinstance(other, str) else self._array() + other)

    def __radd__(self, other: Any) -> Any:
        """Concatenates another string, or each element of an array of strings, with this string."""
        return on_host(other.encode() + bytes(self) if isinstance(other, str) else other + self._array())

    def __eq__(self, other: object) -> Any:
        """Returns whether this string equals another; elementwise for an array of strings."""
        if isinstance(other, str | bytes):
            return bytes(self) == (other.encode() if isinstance(other, str) else bytes(other))
        return self._array() == other if is_text(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        """Returns whether this string differs from another; elementwise for an array of strings."""
        equal = self == other
        return equal if equal is NotImplemented else not equal if isinstance(equal, bool) else ~equal

    def _array(self) -> HostArray:
        return as_bytes_array(self).view(HostArray)

    def get_shape(self) -> TensorShape:
        """Returns the shape ``()``, because a single string is a scalar."""
        return TensorShape(())

    def set_shape(self, shape: ShapeLike | None) -> None:
        """Checks that the given shape is compatible with the shape of a scalar.

        Raises:
            ValueError: The shape is another.
        """
        check_shape(self, shape)


def is_text(value: object) -> bool:
    """Returns whether a value is a string, or a list or an array that consists of strings."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "SUT" or (value.dtype.hasobject and all(map(is_text, value.flat)))
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_text, value))
    return isinstance(value, str | bytes)


def _is_short(value: object) -> bool:
    """Returns whether a value is a Python int or float, or an array of integers of at most 16 bits.

    The quotient of two such values is float32 in TensorFlow, and float64 in NumPy.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "iu" and value.dtype.itemsize <= 2
    return type(value) in (int, float)


def _truths(compared: Any) -> Any:
    """Converts an object array, NumPy's result of comparing strings, to booleans; returns other results unchanged."""
    return compared.astype(bool) if isinstance(compared, np.ndarray) and compared.dtype.hasobject else compared


def texts_equal(x: Any, y: Any) -> Any:
    """Compares two strings or arrays of strings elementwise; returns a boolean array.

    Raises:
        TypeError: Only one side consists of strings.
    """
    sides = [one if isinstance(one, HostText) else as_bytes_array(one).view(HostArray) for one in (x, y)]
    return on_host(np.asarray(sides[0] == sides[1]))


def on_host(value: object) -> Any:
    """Gives bytes and NumPy arrays the `numpy()` method of a tensor; returns anything else unchanged."""
    if isinstance(value, bytes):
        return HostText(value)
    if isinstance(value, np.generic):
        return np.asarray(value).view(HostArray)
    return value.view(HostArray) if isinstance(value, np.ndarray) else value


def strings_as_bytes(value: Any) -> Any:
    """Converts a NumPy string, or an array of strings, to bytes, as in `tf.string`; returns other values unchanged."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "SUT":
        return value
    texts = as_bytes_array(np.asarray(value))
    return texts if texts.shape else texts[()]


def check_shape(value: Described, shape: ShapeLike | None) -> None:
    """Raises an error unless a value's shape is compatible with the given shape (`set_shape` of tensors).

    Raises:
        ValueError: The shape differs.
    """
    if not TensorShape(shape).is_compatible_with(value.shape):
        raise ValueError(f"Tensor's shape {value.shape} is not compatible with supplied shape {shape}.")


@dataclasses.dataclass(frozen=True)
class OnHostArrays:
    """A function of an input pipeline, wrapped to receive arrays and strings as `HostArray` and `HostText`.

    A view costs about a microsecond per array; tensors, which are on a device, would cost fifty. Operations of the
    function compute in 64 bits where TensorFlow does: elements stay on the host, where large integers such as hashes
    are common, and JAX would drop the upper half of their bits.

    Attributes:
        function: The user's function.
    """

    function: Callable[..., Any]

    def __call__(self, *parts: Any) -> Any:
        """Calls the wrapped function with arrays as `HostArray` views; converts results to plain NumPy arrays."""
        with in_64_bits():
            return _plain(self.function(*(_seen(part) for part in parts)))


def in_64_bits() -> AbstractContextManager[Any]:
    """Returns a context manager that enables JAX's 64-bit mode, for functions of an input pipeline."""
    context: AbstractContextManager[Any] = jax.enable_x64(True)
    return context


def initial_state(value: PyTree) -> Any:
    """Converts the initial state of `Dataset.reduce`: int32 tensors requested as int64 become int64 arrays."""
    return tree_map(lambda leaf: np.asarray(leaf, np.int64) if is_narrowed(leaf) else leaf, value)


def _seen(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray and value.dtype.kind not in "SUT":
        return value.view(HostArray)
    if kind is dict:
        return {key: _seen(part) for key, part in value.items()}
    if kind is tuple or kind is list:
        return kind(_seen(part) for part in value)
    return tree_map(_seen, value) if _is_structure(kind) else on_host(strings_as_bytes(value))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is HostArray:
        return value.view(np.ndarray)
    if kind is dict:
        return {key: _plain(part) for key, part in value.items()}
    if kind is tuple:
        return tuple(_plain(part) for part in value)
    if issubclass(kind, list):
        return [_plain(part) for part in value]
    return tree_map(_plain, value) if _is_structure(kind) else value


def _is_structure(kind: type) -> bool:
    return issubclass(kind, (tuple, dict))


def as_bytes_array(value: Texts) -> np.ndarray[Any, Any]:
    """Converts one or more strings to a NumPy object array of bytes."""
    if isinstance(value, str | bytes):
        array = np.empty((), object)
        array[()] = value.encode() if isinstance(value, str) else bytes(value)
        return array
    given = np.asarray(value, object)
    made = np.empty(given.shape, object)
    for place, text in np.ndenumerate(given):
        if not isinstance(text, str | bytes):
            raise TypeError(f"Expected strings or bytes, got {type(text).__name__}: {text!r}")
        made[place] = text.encode() if isinstance(text, str) else bytes(text)
    return made
