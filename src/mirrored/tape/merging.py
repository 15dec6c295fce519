"""Merges of local replicas, recorded by every replica's tape.

In a merge all local replicas' operands come together and one function computes all their results. Seen from the tapes
it is one operation of which each replica holds a part. The forward pass runs once, in the driver, by `jax.vjp`, whose
residuals go to replica 0 as additional results (so that a tape around this one sees them). What it assigns meanwhile
takes effect when it is over. The way back is another
merge: every replica brings its cotangents, replica 0 the residuals, and each takes its operands' cotangents home. All
replicas walk the same merges in the same order, whether or not a cotangent has arrived at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from mirrored._jax.boxes import another_object
from mirrored._jax.programs import aval_of, is_inexact
from mirrored.runtime.merging import Merge, run_merge
from mirrored.runtime.overlay_store import assignments_apart
from mirrored.tape.operation import linearize_with
from mirrored.tape.record import Key, Pulled, Record, Runner, no_cotangent

if TYPE_CHECKING:
    from mirrored.tape.trace import TapeTrace


class MergePullback:
    """What the forward pass of one merge leaves for the way back, the same for all replicas.

    Attributes:
        tree: The pullback's structure; its leaves are with replica 0.
        sizes: For each replica, how many operands it brought.
        watched: Positions of the operands with gradients, in the row of all replicas' operands.
        results: The abstract values of each replica's results.
    """

    def __init__(self, tree: Any, sizes: list[int], watched: list[int], results: list[list[Any]]) -> None:
        self.tree = tree
        self.sizes = sizes
        self.watched = watched
        self.results = results


class MergePart:
    """One replica's share of a merge, handed from the driver to its tape.

    Attributes:
        index: Which local replica.
        num_results: How many of the results are the merge's own; residuals follow.
    """

    def __init__(self, way: MergePullback, index: int, num_results: int) -> None:
        self.way = way
        self.index = index
        self.num_results = num_results


def process(trace: TapeTrace, merge: Merge, payload: list[Any]) -> list[Any]:
    """Meets under the tape's parent, and records the replica's part if the tape is recording."""
    values, keys, watched = trace.sort(payload)
    with trace.under_parent():
        if trace.recorder is None or trace.touched is not None:
            return run_merge(merge, values)
        *results, part = run_merge(Merge(merge.name, lambda payloads: _forward(merge, payloads)), values)
    residuals = results[part.num_results :]
    own = results[: part.num_results]
    record = MergeRecord(keys, watched, merge.name, part, residuals)
    record.arrays = [_is_array(value) for value in own]
    return trace.add(record, own, [_is_array(value) and is_inexact(aval_of(value)) for value in own], values)


def _forward(merge: Merge, payloads: Sequence[list[Any]]) -> list[list[Any]]:
    """Runs in the driver: every replica's results, residuals (replica 0), and its part."""
    sizes = [len(payload) for payload in payloads]
    operands = [value for payload in payloads for value in payload]
    watched = [i for i, value in enumerate(operands) if _is_array(value) and is_inexact(aval_of(value))]
    shapes: list[list[Any]] = []

    def merged(*values: Any) -> list[Any]:
        results = [list(result) for result in merge.run(_split(values, sizes))]
        # A tape inside this one hands its parts through, which are no arrays.
        shapes[:] = [[None if _is_array(value) else value for value in result] for result in results]
        return [value for result in results for value in result if _is_array(value)]

    overlay, apart = assignments_apart(merged)
    results, pullback, assigned = linearize_with(apart, operands, watched, overlay.values)
    overlay.settle(assigned)
    residuals, tree = jax.tree.flatten(pullback)
    arrays = iter(results)
    by_replica = [[next(arrays) if other is None else other for other in shape] for shape in shapes]
    way = MergePullback(
        tree, sizes, watched, [[aval_of(value) for value in result if _is_array(value)] for result in by_replica]
    )
    first = by_replica[0]
    return [
        [*result, *(residuals if result is first else ()), MergePart(way, k, len(result))]
        for k, result in enumerate(by_replica)
    ]


class MergeRecord(Record):
    """Goes back through a merge by another merge."""

    __slots__ = ("arrays", "name", "part", "residuals")

    meets = True

    def __init__(
        self, in_keys: Sequence[Key], watched: tuple[int, ...], name: str, part: MergePart, residuals: list[Any]
    ) -> None:
        super().__init__(in_keys, watched)
        self.name = name
        self.part = part
        self.residuals = residuals
        self.arrays: list[bool] = []

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        way, index = self.part.way, self.part.index
        arrived = [cotangent for cotangent, is_array in zip(cotangents, self.arrays, strict=True) if is_array]
        given = [
            no_cotangent(aval) if cotangent is None else cotangent
            for cotangent, aval in zip(arrived, way.results[index], strict=True)
            if is_inexact(aval)
        ]
        merge = Merge(f"the gradient of {self.name}", lambda payloads: _back(way, payloads))
        pulled = run_merge(merge, [*self.residuals, *given])
        return [(i, pulled[position]) for i, position in enumerate(self.watched) if pulled[position] is not None]


def _back(way: MergePullback, payloads: Sequence[list[Any]]) -> list[list[Any]]:
    """Runs in the driver: every replica's operands' cotangents, None for operands without."""
    num_residuals = way.tree.num_leaves
    given = [iter(payload[num_residuals:] if k == 0 else payload) for k, payload in enumerate(payloads)]
    cotangents = [
        next(given[k]) if is_inexact(aval) else no_cotangent(aval)
        for k, avals in enumerate(way.results)
        for aval in avals
    ]
    pullback = jax.tree.unflatten(way.tree, payloads[0][:num_residuals])
    row: list[Any] = [None] * sum(way.sizes)
    for position, cotangent in zip(way.watched, pullback(cotangents), strict=True):
        row[position] = cotangent
    # Each replica takes home an object of its own: one object handed to all would count as one value for all.
    return _split([another_object(value) for value in row], way.sizes)


def _split(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array)
