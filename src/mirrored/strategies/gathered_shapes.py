"""Checks that the arrays of several replicas can be concatenated along an axis, or reduced."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrored.errors import ArgumentError, DisagreementError
from mirrored.runtime.hooks import shape_error


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
    """Returns the violated rule in the wording of TensorFlow's messages, for which users search."""
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


def one_type(place: int, types: Sequence[list[Any] | None]) -> list[Any] | None:
    """Returns the dtype and the shape of an array in an all-reduce; None if no worker has it.

    Args:
        place: The position of the array.
        types: Its dtype and shape on each worker, or None.
    """
    given = {worker: kind for worker, kind in enumerate(types) if kind is not None}
    first = next(iter(given), 0)
    for worker, kind in given.items():
        if kind != given[first]:
            raise DisagreementError(
                "Strategy.run",
                found=f"array {place} of an all-reduce is {_shown(given[first])} on worker {first} and {_shown(kind)} "
                f"on worker {worker}",
                rule="an all-reduce combines arrays of one shape and dtype, which all replicas pass in the same order",
                remedy="pass the same list of arrays on all workers, with None for an array that a replica lacks",
            )
    return given.get(first)


def _shown(kind: list[Any]) -> str:
    return f"{kind[0]}{kind[1]}"
