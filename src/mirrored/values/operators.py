"""`ArrayOperators`: array operators (``+``, ``@``, indexing, ...) for variables and mirrored values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mirrored._jax.sequences import beside
from mirrored._jax.traces import Tracer
from mirrored._typing import DTypeLike, Operand
from mirrored.values.tensor_shape import TensorShape

SEQUENCES: Final = frozenset({list, tuple, TensorShape})
"""What an operator converts to an array; a named tuple may have operators of its own."""


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operator_of_value(self: Any, other: Operand) -> Any:
        value = self.read_value()
        return function(value, _operand(other, value))

    return operator_of_value


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def reflected(self: Any, other: Operand) -> Any:
        value = self.read_value()
        return function(_operand(other, value), value)

    return reflected


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: function(self.read_value())


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.read_value(), name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, f"`jax.Array.{name}` of the value."
    return method


def _property(name: str) -> property:
    return property(lambda self: getattr(self.read_value(), name), doc=f"`jax.Array.{name}` of the value.")


def _conversion(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return self.converted(lambda value: getattr(value, name)(*args))

    method.__name__, method.__doc__ = name, f"`jax.Array.{name}` of the value."
    return method


def _operand(other: Operand, value: Any) -> Any:
    if isinstance(other, ArrayOperators):
        return other.read_value()
    if type(other) in SEQUENCES:
        return beside(other, value.dtype)
    return other


class ArrayOperators:
    """Mixin that applies the operators of arrays to the result of the object's `read_value()`.

    It supports arithmetic (also reflected), elementwise comparison, indexing, conversion and common array methods.
    """

    __slots__ = ()
    # NumPy's `array + variable` returns NotImplemented, and Python calls `variable.__radd__`. A function of NumPy, such
    # as `np.add(array, variable)`, gets the value by `__array__`, as from a `jax.Array`.
    __array_priority__ = 1000

    def read_value(self) -> Any:
        """Returns the array to which the operators are applied."""
        raise NotImplementedError(type(self).__name__)

    def converted(self, convert: Callable[[Any], Any]) -> Any:
        """Returns the result of `convert`, such as `numpy.asarray`, for the array that `read_value()` returns."""
        return convert(self.read_value())

    for _name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and_",
        "or_",
        "xor",
        "lshift",
        "rshift",
    ):
        _function = getattr(operator, _name)
        _plain = _name.rstrip("_")
        locals()[f"__{_plain}__"] = _binary(_function)
        locals()[f"__r{_plain}__"] = _reflected(_function)
    for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
        locals()[f"__{_name}__"] = _binary(getattr(operator, _name))
    for _name in ("neg", "pos", "abs", "invert"):
        locals()[f"__{_name}__"] = _unary(getattr(operator, _name))
    del _function, _plain
    __divmod__, __rdivmod__ = _binary(divmod), _reflected(divmod)
    for _name in ("sum", "mean", "max", "min", "prod", "std", "var", "argmax", "argmin", "any", "all", "dot"):
        locals()[_name] = _method(_name)
    for _name in ("astype", "reshape", "transpose", "ravel", "flatten", "squeeze"):
        locals()[_name] = _method(_name)
    # NumPy's functions of these names call the method of their argument. Without it they would convert the argument to
    # a NumPy array, and a tape would not see the operation.
    for _name in ("cumsum", "cumprod", "clip", "round", "take", "sort", "argsort", "repeat", "swapaxes", "diagonal"):
        locals()[_name] = _method(_name)
    for _name in ("trace", "conj", "conjugate", "nonzero", "searchsorted", "compress", "choose", "ptp", "argpartition"):
        locals()[_name] = _method(_name)
    # Methods of concrete arrays, which programs call on the leaves of a state. Those of a tracer raise JAX's error.
    for _name in ("copy", "view", "block_until_ready", "is_ready", "devices", "addressable_data", "copy_to_host_async"):
        locals()[_name] = _method(_name)
    for _name in ("item", "tolist", "tobytes"):
        locals()[_name] = _conversion(_name)
    # Not `sharding`: JAX would take a variable for an array that is committed to its devices, and commit results.
    for _name in ("nbytes", "itemsize", "addressable_shards"):
        locals()[_name] = _property(_name)
    for _name in ("is_fully_replicated", "is_fully_addressable"):
        locals()[_name] = _property(_name)
    del _name
    T = property(lambda self: self.read_value().T)
    at = property(lambda self: self.read_value().at)
    mT = property(lambda self: self.read_value().mT)
    real = property(lambda self: self.read_value().real)
    imag = property(lambda self: self.read_value().imag)
    # As for arrays, equality is elementwise, so a variable is not hashable. `Variable.ref()` is a dictionary key.
    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: object) -> Any:
        return self.read_value()[index]

    def __len__(self) -> int:
        return len(self.read_value())

    def __iter__(self) -> Any:
        value = self.read_value()
        if isinstance(value, Tracer) and value.ndim == 0:  # JAX iterates over an axis that is not an int
            raise TypeError(f"iteration over a 0-d array: {self!r}")
        return iter(value)

    def __float__(self) -> float:
        return self.converted(float)

    def __int__(self) -> int:
        return self.converted(int)

    def __index__(self) -> int:
        return self.converted(operator.index)

    def __bool__(self) -> bool:
        return self.converted(bool)

    def __complex__(self) -> complex:
        return self.converted(complex)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.read_value(), digits or 0)

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else str(self.converted(lambda value: format(value, spec)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.converted(lambda value: np.array(value, dtype=dtype))

    def __jax_array__(self) -> Any:
        return self.read_value()
