"""Programs for arrays of which a size, or the number of dimensions, is not known yet.

JAX traces a function for sizes that are letters, as long as it can decide all that the function asks about them. Where
it cannot, something is settled that TensorFlow would find out when the program runs. In this order: a condition that
the sizes must keep (what is reshaped to rows of 784 has a multiple of 784 elements), letters that are the same for
several arrays (of one batch), the sizes with which the function has been called, but for the first dimension, numbers
that the weights ask for, and the whole shapes with which it has been called.
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

from mirrored._jax.symbolic import InconclusiveDimensionOperation

T = TypeVar("T")
_MOST_ADDED: Final = 8  # columns that a program may add to its input before it meets weights
_MOST_CONDITIONS: Final = 8
_RANKS: Final = range(7)  # a batch of videos, and one more
_UNDECIDED: Final = (TypeError, ValueError, NotImplementedError, InconclusiveDimensionOperation)
_REMAINDER: Final = re.compile(r"The remainder (.+?) should be 0")
_COMPARISON: Final = re.compile(r"Symbolic dimension comparison '(.+?)' (>=|<=) '(.+?)' is inconclusive")


@dataclasses.dataclass(frozen=True)
class Open:
    """An array of which not everything is known.

    Attributes:
        shape: None for a size that is not known; None for all of it if the number of dimensions is not known.
        dtype: JAX's.
    """

    shape: tuple[int | None, ...] | None
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Traced(Generic[T]):
    """What became of a function.

    Attributes:
        program: What `trace` has made.
        inputs: The arguments that it is for, with ``jax.ShapeDtypeStruct`` for arrays.
        conditions: What their sizes must keep.
    """

    program: T
    inputs: Any
    conditions: tuple[str, ...] = ()


def opened(value: Any) -> Any:
    """A structure of specs (objects with `shape` and `dtype`) and static values, with `Open` for each spec."""
    return jax.tree.map(_opened, value, is_leaf=_is_spec)


def _is_spec(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _opened(leaf: Any) -> Any:
    if not _is_spec(leaf):
        return leaf
    shape = None if leaf.shape is None or getattr(leaf.shape, "rank", 0) is None else tuple(leaf.shape)
    sizes = None if shape is None else tuple(None if size is None else int(size) for size in shape)
    return Open(sizes, jnp.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)))


def traced_for(inputs: Any, seen: Sequence[Any], trace: Callable[[Any], T]) -> list[Traced[T]]:
    """Traces a function for what is known of its arguments.

    Args:
        inputs: The arguments, with `Open` for arrays.
        seen: Arguments of earlier calls, in the same form.
        trace: From arguments with ``jax.ShapeDtypeStruct`` for arrays to a program.

    Returns:
        One program; for an unknown number of dimensions one for each number of dimensions (0 to 6, the same for all
        arrays in question) that the function takes.

    Raises:
        Exception: What tracing for the unchanged arguments has raised, if nothing that may be settled helps.
    """
    if all(one.shape is not None for one in _arrays(inputs)):
        return [_settled(inputs, seen, trace)]
    found, refused = [], None
    for rank in _RANKS:
        try:
            found.append(_settled(_map(functools.partial(_with_rank, rank=rank), inputs), (), trace))
        except Exception as error:  # the user's code, with a number of dimensions that it may not be for
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def _settled(inputs: Any, seen: Sequence[Any], trace: Callable[[Any], T]) -> Traced[T]:
    refused: list[Exception] = []
    for letters in _lettered(inputs):
        try:
            return _on_conditions(letters, trace)
        except _UNDECIDED as error:
            refused.append(error)
    batches = [_batch_of(inputs, one) for one in seen]
    for numbers in (*batches, *_narrowed(inputs, [_complaint(error) for error in refused]), *seen):
        try:
            return _on_conditions(numbers, trace)
        except _UNDECIDED:
            continue
    raise refused[0]


def _on_conditions(inputs: Any, trace: Callable[[Any], T]) -> Traced[T]:
    """Traces with letters for sizes, and with the conditions on which JAX can decide what it is asked."""
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
    """The message of an error, with those of the errors that led to it."""
    messages: list[str] = []
    following: BaseException | None = error
    while following is not None and len(messages) < _MOST_CONDITIONS:
        messages.append(str(following))
        following = following.__cause__ or following.__context__
    return "\n".join(messages)


def _condition(complaint: str) -> str | None:
    """What would have to be known of the sizes."""
    remainder = _REMAINDER.search(complaint)
    if remainder is not None:
        return f"{_written(remainder[1])} == 0"
    comparison = _COMPARISON.search(complaint)
    return None if comparison is None else f"{_written(comparison[1])} {comparison[2]} {_written(comparison[3])}"


def _written(expression: str) -> str:
    return re.sub(r"- (?=\d)", "-", expression)  # JAX prints "- 784", and reads "-784"


# Sizes as letters


def _lettered(inputs: Any) -> Iterator[Any]:
    """The arguments with a letter for each open size: all different, one for all batches, one for each axis."""
    tried: list[list[Any]] = []
    for name in (_by_place, _by_batch, _by_axis):
        places = iter(range(1000))
        letters = _map(functools.partial(_with_letters, name=name, places=places), inputs)
        shapes = [one.shape for one in _arrays(letters)]
        if shapes not in tried:
            tried.append(shapes)
            yield letters


def _by_place(axis: int, place: int) -> str:
    return f"d{place}"


def _by_batch(axis: int, place: int) -> str:
    return f"d{place}" if axis else "batch"


def _by_axis(axis: int, place: int) -> str:
    return f"axis{axis}"


def _with_letters(one: Open, *, name: Callable[[int, int], str], places: Iterator[int]) -> Open:
    sizes: Any = [name(axis, next(places)) if size is None else size for axis, size in enumerate(one.shape or ())]
    return Open(tuple(sizes), one.dtype)


def _described(inputs: Any, conditions: Sequence[str]) -> Any:
    scope = jax.export.SymbolicScope(conditions)

    def describe(one: Open) -> jax.ShapeDtypeStruct:
        sizes = ",".join(map(str, one.shape or ()))
        return jax.ShapeDtypeStruct(jax.export.symbolic_shape(sizes, scope=scope) if sizes else (), one.dtype)

    return _map(describe, inputs)


# Sizes as numbers


def _narrowed(inputs: Any, complaints: Sequence[str]) -> Iterator[Any]:
    """The arguments with numbers for their one open size (behind the first dimension, if there are several).

    ``(x - mean) / deviation`` with 30 means is for 30 columns. The numbers are those that a complaint names, and a
    little less, for programs that add columns of their own.
    """
    axes = [axis for one in _arrays(inputs) for axis, size in enumerate(one.shape) if size is None]
    first = 0 if len(axes) == 1 else 1
    if sum(axis >= first for axis in axes) != 1:
        return
    named = sorted({int(one) for text in complaints for one in re.findall(r"(?<![\w.])\d+", text)}, reverse=True)
    for number in dict.fromkeys(one - less for one in named for less in range(_MOST_ADDED) if one - less > 1):
        numbered = _map(functools.partial(_with_number, number=number, first=first), inputs)
        yield next(_lettered(numbered))


def _with_number(one: Open, *, number: int, first: int) -> Open:
    sizes = [number if size is None and axis >= first else size for axis, size in enumerate(one.shape or ())]
    return Open(tuple(sizes), one.dtype)


def _batch_of(inputs: Any, seen: Any) -> Any:
    """Arguments of an earlier call, for a batch of any size where the batch's size is open."""
    wanted = iter(_arrays(inputs))

    def open_batch(one: Open) -> Open:
        given = next(wanted)
        is_open = bool(given.shape) and given.shape[0] is None
        return Open(("batch", *one.shape[1:]), one.dtype) if is_open and one.shape else one  # type: ignore[arg-type]

    return _map(open_batch, seen)


def _with_rank(one: Open, *, rank: int) -> Open:
    return Open((None,) * rank, one.dtype) if one.shape is None else one


def _arrays(inputs: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(inputs, is_leaf=_is_open) if isinstance(leaf, Open)]


def _map(change: Callable[[Open], Any], inputs: Any) -> Any:
    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, Open) else leaf, inputs, is_leaf=_is_open)


def _is_open(value: Any) -> bool:
    return value is None or isinstance(value, Open)
