"""Checks arguments of strategies and replica contexts: positional arguments, axes, the shapes of gathered arrays."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from mirrored._jax.arrays import as_array, has_host_dtype
from mirrored._typing import Leaf
from mirrored.errors import ArgumentError, ArgumentTypeError
from mirrored.runtime.hooks import shape_error
from mirrored.values.attributes import has_attribute
from mirrored.values.distributed_values import DistributedValues

_CONVERSIONS: Final = ("__jax_array__", "__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__")


def as_arguments(called: str, args: Any, spelled: str) -> tuple[Any, ...]:
    """Returns positional arguments as a tuple; raises an error for a single array, a dict or a string.

    Args:
        called: The method, for the message.
        args: What the caller passed.
        spelled: How to call the method with a single argument x.

    Raises:
        ArgumentError: `args` is an array, a variable, a per-replica value, a dict or a string.
    """
    if not has_attribute(args, "shape") and not isinstance(args, (DistributedValues, Mapping, str, bytes)):
        return tuple(args)
    raise wrong_arguments_error(called, f"args is of type {type(args).__name__}", spelled)


def wrong_arguments_error(called: str, found: str, spelled: str) -> ArgumentError:
    """Returns the error for an object that was passed in place of a list or tuple of positional arguments.

    Args:
        called: The method.
        found: What was passed.
        spelled: How to call the method with a single argument x.
    """
    return ArgumentError(
        called,
        found=found,
        rule="args must be a list or tuple of the function's positional arguments",
        remedy=f"write {spelled} for a single argument x",
    )


def as_operand(called: str, value: Leaf) -> jax.Array:
    """Converts a leaf of the values that a method combines to an array; raises an error for other objects.

    A list counts as another object here: as a leaf it is an object of a subclass, whose items JAX would stack.

    Raises:
        ArgumentTypeError: `value` is an object of a class that is not registered with JAX, a string, or an array of
            strings or objects.
    """
    if isinstance(value, jax.Array) or not (has_host_dtype(value) or _is_object(value)):
        return as_array(value)
    kind = type(value).__name__
    raise ArgumentTypeError(
        called,
        found=f"the value is an array of dtype {value.dtype}"
        if has_host_dtype(value)
        else f"the value is of type {kind}",
        rule="only arrays and numbers are combined over replicas, in lists, tuples, dicts and classes that are "
        "registered with JAX; a subclass of list or dict is not registered",
        remedy="pass arrays of numbers, in a plain dict or list, or register the class: "
        "jax.tree_util.register_dataclass for a dataclass",
    )


def _is_object(value: object) -> bool:
    """Returns whether JAX has no array of a value: it is no number, and no array, variable or similar object."""
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic, DistributedValues)):
        return False
    return isinstance(value, Sequence) or not any(has_attribute(value, name) for name in _CONVERSIONS)


def as_axis(called: str, axis: Any) -> int:
    """Converts `axis`, an int or an integer scalar, to an int; raises ArgumentError for anything else."""
    try:
        if not isinstance(axis, (bool, np.bool_)):
            return operator.index(axis)
    except TypeError:
        pass
    raise ArgumentError(
        called,
        found=f"axis={axis!r}",
        rule="axis must be an integer, the dimension along which values are concatenated",
        remedy="pass axis=0",
    )


def check_gathered(called: str, shapes: Sequence[tuple[int, ...]], axis: int, what: str) -> None:
    """Raises an error if arrays of the given shapes cannot be concatenated along `axis`.

    Args:
        called: The called function, for the message.
        shapes: The shapes of all replicas' arrays.
        axis: The dimension along which they are concatenated; negative values count from the last one.
        what: What has these shapes, for the message.

    Raises:
        ArgumentError: The shapes differ in rank, or in a dimension other than `axis`; or there is no such dimension.
            With `mirrored.tf` it is a `tf.errors.InvalidArgumentError`, too.
    """
    rule = _violated(shapes, axis)
    if rule is not None:
        raise shape_error(
            called,
            found=f"axis={axis} for {what} of shapes {', '.join(map(str, shapes))}",
            rule=rule,
            remedy="gather value[None] for scalars; pad values that differ in other dimensions than the gathered one",
        )


def _violated(shapes: Sequence[tuple[int, ...]], axis: int) -> str | None:
    """Returns, in TensorFlow's words, which rule of concatenation the shapes violate; None if the shapes are valid."""
    rank = len(shapes[0])
    if any(len(shape) != rank for shape in shapes):
        return "Shape mismatch: Ranks of all input tensors should match"
    if not -rank <= axis < rank:
        return "axis must be a dimension of the values, along which they are concatenated; a scalar has none"
    for dimension in range(rank):
        if dimension != axis % rank and len({shape[dimension] for shape in shapes}) > 1:
            return (
                f"Shape mismatch: Dimension {dimension} in both shapes must be equal; only the gathered one may differ"
            )
    return None
