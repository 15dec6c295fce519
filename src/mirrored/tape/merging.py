"""Records collectives and `merge_call` on the tapes of all replicas that take part.

In a merge, one function computes the results of all local replicas from the operands of all of them. The local replicas
are those of one device in a compiled run, and those of this process in an eager run, on all of its devices. For the
tapes the merge is one operation, of which each replica's tape records its own operands and results:

- Forward pass: the function runs once, under `jax.vjp`, in the driver (the thread that started the replicas). The
  residuals are returned to replica 0 as additional results, so that an outer tape sees them. Assignments are staged and
  take effect when the differentiation is complete.
- Backward pass: another merge. Each replica passes its cotangents, replica 0 also the residuals, and each
  receives the cotangents of its operands. If a persistent tape records the backward pass, each passes its operands,
  unless the function assigns variables, so that it may run only once: such a gradient has no derivative.

The backward passes of all replicas must execute the same merges in the same order. A replica therefore executes a merge
even if no cotangent has reached it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax

from mirrored._jax.boxes import another_object
from mirrored._jax.inlining import program_of
from mirrored._jax.jaxprs import aval_of, is_inexact
from mirrored.analysis.dataflow import reached_results
from mirrored.errors import TapeError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.merge import Merge, run_merge, same_object
from mirrored.runtime.overlay_store import collecting_assignments
from mirrored.tape.dependencies import finding_dependencies
from mirrored.tape.no_derivative import Key
from mirrored.tape.operation import linearize, linearize_with
from mirrored.tape.record import Pulled, Record, Runner, no_cotangent

if TYPE_CHECKING:
    from mirrored.tape.trace import TapeTrace


_Run = Callable[[Sequence[Any]], Sequence[Any]]

_ARRAY: Final = object()
"""Marks the position of an array among the results of a merge."""


class MergePullback:
    """The pullback of one collective or `merge_call`, shared by the tape records of all replicas.

    Attributes:
        tree: The tree structure of the pullback. Replica 0 holds its leaves, the residuals.
        sizes: The number of operands of each replica.
        watched: The positions of the differentiable operands, in the concatenated operands of all replicas.
        results: The abstract values of each replica's results.
        run: The function that computes the results of all local replicas from their operands, for derivatives of the
            gradient. None if the tape is not persistent.
        assigns: Whether the function assigns variables. An assignment has no derivative, so results may not depend on
            operands.
    """

    def __init__(
        self,
        tree: jax.tree_util.PyTreeDef,
        sizes: list[int],
        watched: list[int],
        results: list[list[Any]],
        run: _Run | None,
        *,
        assigns: bool,
    ) -> None:
        self.tree = tree
        self.sizes = sizes
        self.watched = watched
        self.results = results
        self.run = run
        self.assigns = assigns


class MergePart:
    """One replica's part in a recorded collective: the collective's pullback (VJP function) and the replica's index.

    Attributes:
        merge_pullback: The pullback of the merge.
        index: The index of the replica among the local replicas.
        num_results: The number of results of the merge. The remaining results are residuals.
    """

    def __init__(self, merge_pullback: MergePullback, index: int, num_results: int) -> None:
        self.merge_pullback = merge_pullback
        self.index = index
        self.num_results = num_results


def process(trace: TapeTrace, merge: Merge, payload: list[Any]) -> list[Any]:
    """Executes a collective or `merge_call` under a tape, and records it if the tape is recording.

    The record holds this replica's operands.
    """
    values, keys, watched = trace.split_operands(payload)
    with trace.under_parent():
        if trace.recorder is None or trace.touched is not None:
            return run_merge(merge, values)
        persistent = trace.recorder.persistent
        recorded = dataclasses.replace(
            merge, run=lambda payloads: _forward(merge, payloads, persistent), nested=None, tapes=merge.tapes + 1
        )
        *results, part = run_merge(recorded, values)
    residuals = results[part.num_results :]
    own = results[: part.num_results]
    record = MergeRecord(keys, watched, merge.name, part, residuals)
    record.arrays = [_is_array(value) for value in own]
    return trace.add(record, own, [_is_array(value) and is_inexact(aval_of(value)) for value in own], values)


def process_outer(trace: TapeTrace, run: Callable[[list[Any]], list[Any]], payload: list[Any]) -> list[Any]:
    """Executes a collective or `merge_call` of an eager run that the tape is around, whose operations it records.

    A replica that is in a function with a derivative rule of its own passes values that the tape does not track,
    because the rule stands for the collective. While the replica waits, the tape records the operations of the other
    replicas: it has one trace for all of them.

    Args:
        trace: The trace of the innermost tape around the run.
        run: Waits for the other replicas, and returns this replica's results.
        payload: The replica's operands.
    """
    tapes: list[TapeTrace] = []
    tape: Any = trace
    while tape is not None and hasattr(tape, "touched"):
        tapes.append(tape)
        tape = tape.parent
    before = [tape.touched for tape in tapes]
    if not any(touched is not None for touched in before):
        return run(payload)
    for tape, touched in zip(tapes, before, strict=True):
        if touched is not None:  # another tape may record the operations of the function
            payload, _, _ = tape.split_operands(payload)
    try:
        for tape in tapes:
            tape.touched = None
        return run(payload)
    finally:
        for tape, touched in zip(tapes, before, strict=True):
            tape.touched = touched


def _forward(merge: Merge, payloads: Sequence[list[Any]], persistent: bool) -> list[list[Any]]:
    """Runs a collective or `merge_call` and linearizes it, once for all local replicas.

    Returns:
        For each replica its results, for replica 0 also the residuals, and last the replica's `MergePart`.
    """
    sizes = [len(payload) for payload in payloads]
    operands = [value for payload in _operands(payloads) for value in payload]
    watched = [i for i, value in enumerate(operands) if _is_array(value) and is_inexact(aval_of(value))]
    shapes: list[list[Any]] = []

    def merged(*values: Any) -> list[Any]:
        results = [list(result) for result in merge.run(_split(values, sizes))]
        # Other results are passed on: those of the merge that are not arrays, and the `MergePart` of an inner tape.
        shapes[:] = [[_ARRAY if _is_array(value) else value for value in result] for result in results]
        return [value for result in results for value in result if _is_array(value)]

    overlay, staged = collecting_assignments(merged)
    results, pullback, assigned = linearize_with(staged, operands, watched, overlay.values)
    overlay.flush(assigned)
    residuals, tree = jax.tree.flatten(pullback)
    arrays = iter(results)
    by_replica = [[next(arrays) if other is _ARRAY else other for other in shape] for shape in shapes]
    merge_pullback = MergePullback(
        tree,
        sizes,
        watched,
        [[aval_of(value) for value in result if _is_array(value)] for result in by_replica],
        merge.run if persistent else None,
        assigns=bool(assigned),
    )
    first = by_replica[0]
    return [
        [*result, *(residuals if result is first else ()), MergePart(merge_pullback, k, len(result))]
        for k, result in enumerate(by_replica)
    ]


class MergeRecord(Record):
    """The tape record of one replica's part in a collective; its pullback is another collective."""

    __slots__ = ("arrays", "name", "part", "residuals")

    needs_all_replicas = True

    def __init__(
        self, in_keys: Sequence[Key], watched: tuple[int, ...], name: str, part: MergePart, residuals: list[Any]
    ) -> None:
        super().__init__(in_keys, watched)
        self.name = name
        self.part = part
        self.residuals = residuals
        self.arrays: list[bool] = []

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        return self._pulled(cotangents, self.residuals, _backward)

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        merge_pullback = self.part.merge_pullback
        is_linear = not merge_pullback.tree.num_leaves
        if is_linear or merge_pullback.assigns or merge_pullback.run is None:  # a merge that assigns runs only once
            return self.pull(cotangents, run)
        # The tape does not track the residuals, so the pullback is computed from the operands, which it tracks.
        assert self.inputs is not None
        return self._pulled(cotangents, self.inputs, _backward_from_operands)

    def _pulled(
        self, cotangents: list[Any], saved: Sequence[Any], backward: Callable[[MergePullback, Any], list[list[Any]]]
    ) -> Pulled:
        merge_pullback, index = self.part.merge_pullback, self.part.index
        self._check_replica()
        arrived = [cotangent for cotangent, is_array in zip(cotangents, self.arrays, strict=True) if is_array]
        given = [
            cotangent
            for cotangent, aval in zip(arrived, merge_pullback.results[index], strict=True)
            if is_inexact(aval)
        ]
        which = same_object(merge_pullback, "the collective")
        merge = Merge(
            f"the gradient of {self.name}", lambda payloads: backward(merge_pullback, payloads), given=(which,)
        )
        pulled = run_merge(merge, [*saved, *given])
        return [(i, pulled[position]) for i, position in enumerate(self.watched) if pulled[position] is not None]

    def _check_replica(self) -> None:
        """Raises an error if a replica other than the one that recorded this collective computes the gradient."""
        here = ambient().replica
        if len(self.part.merge_pullback.sizes) == 1 or (here is not None and here.local_index == self.part.index):
            return
        raise TapeError(
            "GradientTape.gradient",
            found=f"the tape of replica {self.part.index} has recorded {self.name}, and is used "
            f"{'outside of run' if here is None else f'in replica {here.local_index}'}",
            rule="the gradient of a collective is a collective: each replica computes it with its own tape, in run",
            remedy="call gradient in the replica function that has opened the tape, and return the gradients",
        )


def _backward(merge_pullback: MergePullback, payloads: Sequence[list[Any]]) -> list[list[Any]]:
    """Runs the pullback of a collective or `merge_call` on residuals, once for all local replicas.

    Args:
        merge_pullback: The pullback.
        payloads: The cotangents of each replica's results, after the residuals for the first replica.
    """
    payloads = _operands(payloads)
    num_residuals = merge_pullback.tree.num_leaves
    pullback: Any = jax.tree.unflatten(merge_pullback.tree, payloads[0][:num_residuals])
    return _pulled_back(merge_pullback, pullback, [payloads[0][num_residuals:], *payloads[1:]])


def _backward_from_operands(merge_pullback: MergePullback, payloads: Sequence[list[Any]]) -> list[list[Any]]:
    """Recomputes a collective or `merge_call`, and runs its pullback as a function of operands and cotangents.

    Args:
        merge_pullback: The pullback of the first execution.
        payloads: The operands of each replica, followed by the cotangents of its results.
    """
    parts = list(zip(_operands(payloads), merge_pullback.sizes, strict=True))
    operands = [value for payload, size in parts for value in payload[:size]]
    run = merge_pullback.run
    assert run is not None

    def merged(*values: Any) -> list[Any]:
        results = run(_split(values, merge_pullback.sizes))
        return [value for result in results for value in result if _is_array(value)]

    _, pullback = linearize(merged, operands, merge_pullback.watched)
    return _pulled_back(merge_pullback, pullback, [payload[size:] for payload, size in parts])


def _pulled_back(
    merge_pullback: MergePullback, pullback: Callable[[list[Any]], Sequence[Any]], given: Sequence[list[Any]]
) -> list[list[Any]]:
    """Returns the cotangents of each replica's operands, given those of the replicas' results.

    A replica passes None as the cotangent of a result that its target does not depend on. The cotangent of an operand
    without a gradient is None.
    """
    passed = [iter(of_replica) for of_replica in given]
    avals = [aval for of_replica in merge_pullback.results for aval in of_replica]
    cotangents = [
        next(passed[k]) if is_inexact(aval) else None
        for k, of_replica in enumerate(merge_pullback.results)
        for aval in of_replica
    ]

    def pull(*present: Any) -> Sequence[Any]:
        remaining = iter(present)
        full = [
            no_cotangent(aval) if cotangent is None else next(remaining)
            for cotangent, aval in zip(cotangents, avals, strict=True)
        ]
        return pullback(full)

    present = [cotangent for cotangent in cotangents if cotangent is not None]
    missing = any(one is None and is_inexact(aval) for one, aval in zip(cotangents, avals, strict=True))
    apart = missing or merge_pullback.assigns
    reached = _reached(pull, present) if apart else [True] * len(merge_pullback.watched)
    all_cotangents: list[Any] = [None] * sum(merge_pullback.sizes)
    # The pullback runs also if no local replica has a cotangent: other processes may be waiting in its collectives.
    for number, (position, cotangent) in enumerate(zip(merge_pullback.watched, pull(*present), strict=True)):
        if reached[number]:
            all_cotangents[position] = cotangent
    # Each replica receives a separate object. An eager run compares results by object identity (`eager_runner`), so one
    # object in all replicas would count as one value.
    return _split([None if value is None else another_object(value) for value in all_cotangents], merge_pullback.sizes)


def _reached(pull: Callable[..., Sequence[Any]], present: Sequence[Any]) -> list[bool]:
    """Returns, for each differentiable operand of a collective, whether the operand receives a cotangent."""
    with finding_dependencies():
        program = program_of(pull, [aval_of(cotangent) for cotangent in present])
    return reached_results(program.jaxpr, range(len(present)))


def _operands(payloads: Sequence[list[Any]]) -> list[list[Any]]:
    runner = ambient().runner
    return list(payloads) if runner is None else runner.operands(payloads)


def _split(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array)
