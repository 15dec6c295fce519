"""`tf.map_fn`, `tf.vectorized_map`, `tf.foldl`, `tf.foldr` and `tf.scan`: functions over the rows of tensors.

Eagerly, these run as Python. While `tf.function` traces, they become `lax.scan`, which also carries the variables that
the function assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import is_eager
from mirrored._jax.trees import transformed
from mirrored._typing import PyTree
from mirrored.errors import TransformError
from mirrored.runtime.ambient import ambient
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError, OutOfRangeError
from mirrored.tf._nest import assert_same_structure, flatten, pack_sequence_as
from mirrored.tf._ops.arrays import executing_eagerly
from mirrored.tf._ops.blocks import BlockStore, stand_in
from mirrored.tf._ops.loops import scan_rows
from mirrored.tf._ops.random_streams import DrewUnderTransform
from mirrored.tf._table import op
from mirrored.tf._tensors import as_tensor, convert_to_tensor


def _row(elems: PyTree, index: int) -> Any:
    return pack_sequence_as(elems, [as_tensor(one)[index] for one in flatten(elems)])


def _stacked(rows: Sequence[Any]) -> Any:
    columns = zip(*(flatten(one) for one in rows), strict=True)
    return pack_sequence_as(rows[0], [jnp.stack([as_tensor(one) for one in column]) for column in columns])


def _length(called: str, elems: PyTree) -> Any:
    """Returns the common number of rows of tensors, which may be symbolic; raises an error if their numbers differ.

    JAX would repeat the last row of a shorter tensor.
    """
    shapes = [as_tensor(one).shape for one in flatten(elems)]
    if len({one[:1] for one in shapes}) == 1 and shapes[0]:
        return shapes[0][0]
    raise InvalidArgumentError.of(
        called,
        found=f"`elems` has tensors of the shapes {', '.join(map(str, shapes))}",
        rule="there must be one or more tensors, each with one or more dimensions and all with the same number of rows",
        remedy="slice the longer ones: x[:n]",
    )


def _with_equal_rows(elems: PyTree) -> Any:
    """Broadcasts tensors with a single row to the number of rows of the other tensors, for `tf.vectorized_map`."""
    tensors = [as_tensor(one) for one in flatten(elems)]
    sizes = [one.shape[0] for one in tensors if one.ndim and one.shape[0] != 1]
    if not sizes:
        return elems
    return pack_sequence_as(
        elems,
        [
            jnp.broadcast_to(one, (sizes[0], *one.shape[1:])) if one.ndim and one.shape[0] == 1 else one
            for one in tensors
        ],
    )


def _all_tensors(structure: PyTree) -> Any:
    return pack_sequence_as(structure, [as_tensor(one) for one in flatten(structure)])


@op("map_fn")
def map_fn(
    fn: Callable[[Any], Any],
    elems: PyTree,
    dtype: object = None,
    parallel_iterations: object = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> Any:
    """Applies `fn` to each slice of tensors along the first axis, and stacks the results.

    Args:
        fn: The function.
        elems: Tensors, or a structure of them.
        dtype: The older name of `fn_output_signature`.
        parallel_iterations: Accepted and ignored.
        back_prop: Accepted and ignored.
        swap_memory: Accepted and ignored.
        infer_shape: Accepted and ignored.
        name: Accepted and ignored.
        fn_output_signature: The dtypes (or specs) of the results, in their structure. Default: those of `elems`.

    Raises:
        ValueError, InvalidArgumentError: A result has another structure or dtype.
    """
    del parallel_iterations, back_prop, swap_memory, infer_shape, name
    length = _length("tf.map_fn", elems)
    given = dtype if fn_output_signature is None else fn_output_signature
    signature = _all_tensors(elems) if given is None else given
    try:
        return _mapped(lambda row: _fitted(fn(row), signature), elems, length)
    except TransformError:
        if not executing_eagerly() or length:
            raise
        # `fn` is traced for the shapes of its results only. As in TensorFlow, it assigns nothing if there are no rows.
        return pack_sequence_as(
            signature, [jnp.zeros(0, array_dtype(getattr(one, "dtype", one))) for one in flatten(signature)]
        )


def _mapped(fn: Callable[[Any], Any], elems: PyTree, length: Any) -> Any:
    if executing_eagerly() and length:
        return _stacked([fn(_row(elems, i)) for i in range(length)])
    return _scanned(lambda _, row: ((), fn(row)), (), elems)[1]


def _scanned(step: Callable[[Any, Any], tuple[Any, Any]], start: PyTree, elems: PyTree) -> tuple[Any, Any]:
    """Runs a function over the rows of tensors with `lax.scan`; rows, carry and results may be structures of tensors.

    Args:
        step: Maps a carried structure and a row of `elems` to a new carried structure and a result.
        start: The initial carried structure.
        elems: Tensors, or a structure of them.

    Returns:
        The final carried structure, and the results of all rows, stacked.
    """
    structures: list[Any] = []

    def flat(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        after, result = step(pack_sequence_as(start, carry), pack_sequence_as(elems, row))
        assert_same_structure(start, after)
        tensors = [as_tensor(one) for one in flatten(result)]
        structures[:] = [pack_sequence_as(result, [stand_in(one) for one in tensors])]
        return flatten(_all_tensors(after)), tensors

    rows = [as_tensor(one) for one in flatten(elems)]
    final, results = scan_rows(flat, [as_tensor(one) for one in flatten(start)], rows)
    return pack_sequence_as(start, final), pack_sequence_as(structures[0], results)


def _fitted(result: PyTree, signature: PyTree) -> Any:
    """Returns the result of a mapped function as tensors, after checking their structure and dtypes."""
    assert_same_structure(signature, result)
    wanted = [array_dtype(getattr(one, "dtype", one)) for one in flatten(signature)]
    found = [convert_to_tensor(one, dtype_hint=dtype) for one, dtype in zip(flatten(result), wanted, strict=True)]
    for one, dtype in zip(found, wanted, strict=True):
        if one.dtype != dtype:
            raise InvalidArgumentError.of(
                "tf.map_fn",
                found=f"fn returned a tensor of dtype {one.dtype} where {dtype} was expected",
                rule="fn must return the dtypes of `elems`, or those of `fn_output_signature`",
                remedy=f"pass fn_output_signature=tf.{one.dtype}, or cast the result",
            )
    return pack_sequence_as(signature, found)


@op("vectorized_map", named=False)
def vectorized_map(
    fn: Callable[[Any], Any], elems: PyTree, fallback_to_while_loop: bool = True, warn: bool = True
) -> Any:
    """Applies `fn` to all slices of tensors along the first axis in parallel (`jax.vmap`).

    If `fn` draws random numbers, or reads or assigns a variable outside `tf.function` and tapes, it runs row by row
    instead, as `map_fn` does.

    Raises:
        TransformError: `fn` assigns a variable while `tf.function` traces. TensorFlow runs such an assignment once.
    """
    del warn
    elems = _with_equal_rows(elems)
    length = _length("tf.vectorized_map", elems)
    try:
        return transformed(jax.vmap, lambda row: _all_tensors(fn(row)))(_all_tensors(elems))
    except TransformError as error:
        if not fallback_to_while_loop or not (is_eager() or isinstance(error, DrewUnderTransform)):
            raise
        return _mapped(fn if executing_eagerly() else _only_drawing(fn, error), elems, length)


def _only_drawing(fn: Callable[[Any], Any], error: TransformError) -> Callable[[Any], Any]:
    """Returns a function for a scan that raises `error` if `fn` assigns variables besides states of generators."""

    def run(row: PyTree) -> Any:
        result = fn(row)
        store = ambient().store
        if isinstance(store, BlockStore) and any(
            getattr(held.variable, "words_of_step", None) is None for held in store.staged.values()
        ):
            raise error
        return result

    return run


def _fold(called: str, fn: Callable[[Any, Any], Any], elems: PyTree, initializer: PyTree, order: Sequence[int]) -> Any:
    indices = list(order)
    if initializer is None:
        initializer = _first(called, elems, indices)
    if executing_eagerly():
        total = initializer
        for i in indices:
            total = fn(total, _row(elems, i))
        return _all_tensors(total)
    return _scanned(lambda total, row: (fn(total, row), ()), initializer, _taken(elems, indices))[0]


def _first(called: str, elems: PyTree, indices: list[int]) -> Any:
    """Pops the first of `indices`, and returns the row of `elems` at that index as the initial value of a fold."""
    if not indices:
        kind = OutOfRangeError if executing_eagerly() else InvalidArgumentError
        raise kind.of(
            called,
            found="`elems` has no rows, and there is no `initializer`",
            rule="the first row is the initial value if no `initializer` is given",
            remedy="pass `initializer`",
        )
    return _row(elems, indices.pop(0))


def _taken(elems: PyTree, indices: Sequence[int]) -> Any:
    chosen = np.asarray(indices, np.int32)
    return pack_sequence_as(elems, [as_tensor(one)[chosen] for one in flatten(elems)])


@op("foldl")
def foldl(
    fn: Callable[[Any, Any], Any],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
) -> Any:
    """Combines the slices of tensors along the first axis by a function of two arguments, from first to last.

    Computes ``fn(...fn(fn(initializer, slice 0), slice 1)...)``; slice 0 is the default initializer.
    """
    del parallel_iterations, back_prop, swap_memory
    return _fold("tf.foldl", fn, elems, initializer, range(_length("tf.foldl", elems)))


@op("foldr")
def foldr(
    fn: Callable[[Any, Any], Any],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
) -> Any:
    """Combines the slices of tensors along the first axis like `foldl`, but from last to first."""
    del parallel_iterations, back_prop, swap_memory
    return _fold("tf.foldr", fn, elems, initializer, range(_length("tf.foldr", elems))[::-1])


@op("scan")
def scan(
    fn: Callable[[Any, Any], Any],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
) -> Any:
    """Combines slices of tensors like `foldl`, and returns all intermediate results, stacked.

    With `reverse`, it combines them like `foldr`; the results are in the order of `elems`. Over no
    rows, the results are empty, with the row shapes of `initializer`.

    Raises:
        OutOfRangeError: There are neither rows nor an `initializer`; `InvalidArgumentError` in traced code.
    """
    del parallel_iterations, back_prop, swap_memory, infer_shape
    order = list(range(_length("tf.scan", elems)))
    order = order[::-1] if reverse else order
    results: list[Any] = []
    total = initializer
    if total is None:
        total = _first("tf.scan", elems, order)
        results.append(_all_tensors(total))
    if not executing_eagerly():
        return _traced_scan(fn, elems, total, order, results, reverse)
    for i in order:
        total = fn(total, _row(elems, i))
        results.append(total)
    if not results:
        none = [jnp.zeros((0, *one.shape), one.dtype) for one in flatten(_all_tensors(total))]
        return pack_sequence_as(total, none)
    return _stacked(results[::-1] if reverse else results)


def _traced_scan(
    fn: Callable[[Any, Any], Any],
    elems: PyTree,
    start: PyTree,
    order: Sequence[int],
    first: Sequence[Any],
    reverse: bool,
) -> Any:
    def once(total: PyTree, row: PyTree) -> tuple[Any, Any]:
        new = fn(total, row)
        return new, new

    _, stacked = _scanned(once, start, _taken(elems, order))
    if first:
        leading = [one[None] for one in flatten(first[0])]
        joined = [jnp.concatenate(pair) for pair in zip(leading, flatten(stacked), strict=True)]
        stacked = pack_sequence_as(stacked, joined)
    return pack_sequence_as(stacked, [one[::-1] for one in flatten(stacked)]) if reverse else stacked
