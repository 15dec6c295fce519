"""Integers that are known while tracing: shapes, sizes, ranks.

In TensorFlow ``tf.shape(x)`` is a tensor like any other. In JAX a shape is a fact of the trace, and must stay one: an
array sliced or multiplied under `jit` is traced, and no shape can be made of it. So `tf.shape`, `tf.size` and
`tf.rank` give host arrays that stay on the host through indexing and arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mirrored._jax.concrete import NotConstant, evaluate
from mirrored._jax.traces import Tracer, unboxed
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._shapes import TensorShape


class StaticTensor(np.ndarray[Any, np.dtype[Any]]):
    """A host array of integers that behaves as a tensor: what `tf.shape` returns.

    Context: any, also inside `tf.function`, where it may be used as a shape, an axis or a Python index.
    """

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Results of NumPy's functions stay static if they are still integers."""
        return static_tensor(array) if array.dtype.kind in "iub" else array

    def __getitem__(self, key: Any) -> Any:
        """A static tensor also for a single element."""
        return static_tensor(np.asarray(super().__getitem__(key)))

    def numpy(self) -> Any:
        """The plain NumPy array, or scalar."""
        return np.array(self)[()]


def static_tensor(value: Any) -> StaticTensor:
    """A `StaticTensor` with int32 for Python's integers."""
    array = np.asarray(value)
    return (array.astype(np.int32) if array.dtype == np.int64 else array).view(StaticTensor)


def static_int(value: Any, *, called: str, argument: str) -> int:
    """A Python int out of an int, a host array or a concrete tensor.

    Raises:
        InvalidArgumentError: It is being traced, so that it has no value yet, or is no integer.
    """
    try:
        return operator.index(known(value))
    except (jax.errors.ConcretizationTypeError, NotConstant):
        raise _traced(called, argument) from None
    except TypeError:
        raise InvalidArgumentError.of(
            called,
            found=f"{argument}={value!r}",
            rule=f"`{argument}` is an integer",
            remedy="pass an int or an integer tensor",
        ) from None


def known(value: Any) -> Any:
    """A traced value that was made of constants, as a concrete one; anything else as it is.

    Raises:
        NotConstant: It is being traced and not known yet.
    """
    if not isinstance(value, Tracer):
        return value
    value = unboxed(value)
    return evaluate(value) if isinstance(value, Tracer) else value


def static_ints(value: Any, *, called: str, argument: str) -> tuple[int, ...]:
    """A tuple of ints out of a sequence, a vector or a single int."""
    if isinstance(value, TensorShape):
        return tuple(value.as_list())
    if isinstance(value, jax.Array) and isinstance(value, Tracer):
        try:
            value = np.asarray(known(value))
        except (jax.errors.TracerArrayConversionError, NotConstant):
            raise _traced(called, argument) from None
    if isinstance(value, (jax.Array, np.ndarray)):
        value = np.asarray(value).tolist()
    if isinstance(value, Sequence):
        return tuple(static_int(one, called=called, argument=argument) for one in value)
    return (static_int(value, called=called, argument=argument),)


def static_axis(value: Any, *, called: str, argument: str = "axis") -> int | tuple[int, ...] | None:
    """An axis argument: None, one int, or a tuple of ints."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, (list, tuple)) or np.ndim(value):
        return static_ints(value, called=called, argument=argument)
    return static_int(value, called=called, argument=argument)


def _traced(called: str, argument: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(
        called,
        found=f"`{argument}` depends on a value that is being traced",
        rule="shapes and axes of compiled code are known while it is traced",
        remedy="compute it from x.shape or tf.shape(x), or pass it as a Python number",
    )
