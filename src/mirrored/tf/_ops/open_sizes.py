"""Traces functions for array arguments whose dimension sizes or number of dimensions are unknown.

JAX traces a function with symbolic dimensions as long as it can decide every condition on them. Where it cannot,
something is fixed that TensorFlow would check at run time. In this order: a condition that the sizes must satisfy (the
number of elements reshaped to rows of 784 is a multiple of 784); the same symbol for several arrays (of one batch); the
sizes of earlier calls, except the first dimension; a number that the weights imply; the full shapes of earlier calls.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import jax
import jax.export  # not part of `import jax`
import jax.numpy as jnp

from mirrored._jax.boxes import InconclusiveDimensionOperation
from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree

T = TypeVar("T")
_MOST_ADDED: Final = 8  # how many columns a program may add to its input before it multiplies by weights
_MOST_CONDITIONS: Final = 8
_RANKS: Final = range(7)  # up to a batch of videos (5), and one more
_UNDECIDED: Final = (TypeError, ValueError, NotImplementedError, InconclusiveDimensionOperation)
_REMAINDER: Final = re.compile(r"The remainder (.+?) should be 0")
_COMPARISON: Final = re.compile(r"Symbolic dimension comparison '(.+?)' (>=|<=) '(.+?)' is inconclusive")


@dataclasses.dataclass(frozen=True)
class Open:
    """The shape and dtype of an array argument; sizes, or even the number of dimensions, may be unknown.

    Attributes:
        shape: The shape, with None for an unknown size; None if the number of dimensions is unknown.
        dtype: The JAX dtype.
    """

    shape: tuple[int | None, ...] | None
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Traced(Generic[T]):
    """A function traced with symbolic dimension sizes, and the conditions that the sizes must satisfy.

    Attributes:
        program: The program that `trace` returned.
        inputs: The arguments of the program, with ``jax.ShapeDtypeStruct`` for arrays.
        conditions: The conditions that their sizes must satisfy.
        refused: The error of tracing with symbolic sizes, if the sizes are those of an earlier call; None otherwise.
    """

    program: T
    inputs: Any
    conditions: tuple[str, ...] = ()
    refused: Exception | None = None


class NotOpenError(Exception):
    """A function cannot be traced for unknown sizes, and no earlier call gives sizes for which it can.

    Attributes:
        reason: The error of tracing it with symbolic sizes.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def opened(value: PyTree) -> Any:
    """Replaces each `tf.TensorSpec` or array in a pytree by an `Open` with its shape and dtype."""
    return tree_map(_opened, value, is_leaf=_is_spec)


def _is_spec(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _opened(leaf: Leaf) -> Any:
    if not _is_spec(leaf):
        return leaf
    shape = None if leaf.shape is None or getattr(leaf.shape, "rank", 0) is None else tuple(leaf.shape)
    sizes = None if shape is None else tuple(None if size is None else int(size) for size in shape)
    return Open(sizes, jnp.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)))


def traced_for(inputs: PyTree, seen: Sequence[Any], trace: Callable[[Any], T]) -> list[Traced[T]]:
    """Traces a function for array arguments whose dimension sizes or number of dimensions are unknown.

    Args:
        inputs: The arguments, with `Open` for arrays.
        seen: Arguments of earlier calls, in the same form.
        trace: Maps arguments, with ``jax.ShapeDtypeStruct`` for arrays, to a program.

    Returns:
        One program, or one per earlier call if the function can be traced only for known sizes. For an unknown number
        of dimensions, one program per number of dimensions (0 to 6, the same for all such arrays) that the function
        accepts.

    Raises:
        NotOpenError: The function cannot be traced for unknown sizes, and nothing that may be fixed helps.
    """
    if all(one.shape is not None for one in _arrays(inputs)):
        return _traced_with_sizes(inputs, seen, trace)
    found, refused = [], None
    for rank in _RANKS:
        try:
            found += _traced_with_sizes(_map(functools.partial(_with_rank, rank=rank), inputs), (), trace)
        except Exception as error:  # of user code, which may not support this number of dimensions
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def _traced_with_sizes(inputs: PyTree, seen: Sequence[Any], trace: Callable[[Any], T]) -> list[Traced[T]]:
    refused: list[Exception] = []
    for symbolic in _symbolic(inputs):
        try:
            return [_on_conditions(symbolic, trace)]
        except _UNDECIDED as error:
            refused.append(error)
    if not any(None in one.shape for one in _arrays(inputs)):
        raise refused[0]
    for batch in (_batch_of(inputs, one) for one in seen):
        if (found := _attempt(batch, trace)) is not None:
            return [found]
    for numbers, others in _with_candidate_sizes(inputs, [_complaint(error) for error in refused]):
        # A program that only needs to know the size, as for Python's `range`, accepts any number: none is implied.
        if (found := _attempt(numbers, trace)) is not None and _attempt(others, trace) is None:
            return [found]
    of_calls = [found for one in _distinct(seen) if (found := _attempt(one, trace)) is not None]
    if not of_calls:
        raise NotOpenError(refused[0])
    return [dataclasses.replace(one, refused=refused[0]) for one in of_calls]


def _attempt(inputs: PyTree, trace: Callable[[Any], T]) -> Traced[T] | None:
    try:
        return _on_conditions(inputs, trace)
    except _UNDECIDED:
        return None


def _distinct(seen: Sequence[Any]) -> list[Any]:
    """Returns the arguments of earlier calls without those that have the shapes and dtypes of another call."""
    return list({repr(_arrays(one)): one for one in seen}.values())


def _on_conditions(inputs: PyTree, trace: Callable[[Any], T]) -> Traced[T]:
    """Traces a function with symbolic sizes; adds a condition on the sizes whenever JAX cannot decide a comparison."""
    conditions: tuple[str, ...] = ()
    while True:
        described = _described(inputs, conditions)
        try:
            return Traced(trace(described), described, conditions)
        except _UNDECIDED as error:
            condition = _condition(_complaint(error))
            if condition is None or condition in conditions or len(conditions) == _MOST_CONDITIONS:
                raise
            conditions = (*conditions, condition)


def _complaint(error: BaseException) -> str:
    """Returns the messages of an error and of its causes, one per line."""
    messages: list[str] = []
    following: BaseException | None = error
    while following is not None and len(messages) < _MOST_CONDITIONS:
        messages.append(str(following))
        following = following.__cause__ or following.__context__
    return "\n".join(messages)


def _condition(complaint: str) -> str | None:
    """Extracts the undecidable condition on symbolic sizes from an error message of JAX; None if it names none."""
    remainder = _REMAINDER.search(complaint)
    if remainder is not None:
        return f"{_written(remainder[1])} == 0"
    comparison = _COMPARISON.search(complaint)
    return None if comparison is None else f"{_written(comparison[1])} {comparison[2]} {_written(comparison[3])}"


def _written(expression: str) -> str:
    return re.sub(r"- (?=\d)", "-", expression)  # JAX prints "- 784", and reads "-784"


# Symbolic sizes


def _symbolic(inputs: PyTree) -> Iterator[Any]:
    """Yields arguments with symbols for unknown sizes: all distinct, then equal ones on axis 0, then on every axis."""
    tried: list[list[Any]] = []
    for name in (_by_place, _by_batch, _by_axis):
        places = iter(range(1000))
        symbolic = _map(functools.partial(_with_symbols, name=name, places=places), inputs)
        shapes = [one.shape for one in _arrays(symbolic)]
        if shapes not in tried:
            tried.append(shapes)
            yield symbolic


def _by_place(axis: int, place: int) -> str:
    return f"d{place}"


def _by_batch(axis: int, place: int) -> str:
    return f"d{place}" if axis else "batch"


def _by_axis(axis: int, place: int) -> str:
    return f"axis{axis}"


def _with_symbols(one: Open, *, name: Callable[[int, int], str], places: Iterator[int]) -> Open:
    sizes: Any = [name(axis, next(places)) if size is None else size for axis, size in enumerate(one.shape or ())]
    return Open(tuple(sizes), one.dtype)


def _described(inputs: PyTree, conditions: Sequence[str]) -> Any:
    scope = jax.export.SymbolicScope(conditions)

    def describe(one: Open) -> jax.ShapeDtypeStruct:
        sizes = ",".join(map(str, one.shape or ()))
        return jax.ShapeDtypeStruct(jax.export.symbolic_shape(sizes, scope=scope) if sizes else (), one.dtype)

    return _map(describe, inputs)


# Known sizes


def _with_candidate_sizes(inputs: PyTree, complaints: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Yields the arguments with one unknown size replaced by a candidate number from JAX's error messages.

    ``(x - mean) / deviation`` with 30 means requires 30 columns. The numbers tried are those in the error messages, and
    slightly smaller ones, for programs that add columns. The second of the yielded arguments have twice the number and
    one more, for which a program that requires the number cannot be traced.
    """
    axes = [axis for one in _arrays(inputs) for axis, size in enumerate(one.shape) if size is None]
    first = 0 if len(axes) == 1 else 1
    if sum(axis >= first for axis in axes) != 1:
        return
    named = sorted({int(one) for text in complaints for one in re.findall(r"(?<![\w.])\d+", text)}, reverse=True)
    for number in dict.fromkeys(one - less for one in named for less in range(_MOST_ADDED) if one - less > 1):
        yield _numbered(inputs, number, first), _numbered(inputs, 2 * number + 1, first)


def _numbered(inputs: PyTree, number: int, first: int) -> Any:
    return next(_symbolic(_map(functools.partial(_with_number, number=number, first=first), inputs)))


def _with_number(one: Open, *, number: int, first: int) -> Open:
    sizes = [number if size is None and axis >= first else size for axis, size in enumerate(one.shape or ())]
    return Open(tuple(sizes), one.dtype)


def _batch_of(inputs: PyTree, seen: PyTree) -> Any:
    """Returns the arguments `seen` in an earlier call, with symbolic batch sizes where `inputs` has unknown ones."""
    wanted = iter(_arrays(inputs))

    def open_batch(one: Open) -> Open:
        given = next(wanted)
        is_open = bool(given.shape) and given.shape[0] is None
        return Open(("batch", *one.shape[1:]), one.dtype) if is_open and one.shape else one  # type: ignore[arg-type]

    return _map(open_batch, seen)


def _with_rank(one: Open, *, rank: int) -> Open:
    return Open((None,) * rank, one.dtype) if one.shape is None else one


def _arrays(inputs: PyTree) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(inputs, is_leaf=_is_open) if isinstance(leaf, Open)]


def _map(change: Callable[[Open], Any], inputs: PyTree) -> Any:
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Open) else leaf, inputs, is_leaf=_is_open)


def _is_open(value: object) -> bool:
    return value is None or isinstance(value, Open)
