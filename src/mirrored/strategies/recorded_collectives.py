"""Collectives over several processes under a tape in eager code, with VJP rules that are collectives as well.

JAX cannot differentiate through the computation of other processes. Each collective therefore has its own VJP rule. The
forward and the backward pass run on concrete values, in the same order on all workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.boxes import is_live_box
from mirrored._jax.traces import Tracer
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import TapeError
from mirrored.runtime.ambient import is_tracked
from mirrored.strategies.reducing import gather_with_sizes
from mirrored.tape.dependencies import finds_dependencies
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values import structures

Lists = Sequence[Sequence[Any]]


def all_reduce_recorded(
    reduce: Callable[[Any, Lists], list[list[Any]]], op: ReduceOp, arrays: Lists, device_assignment: DeviceAssignment
) -> list[list[Any]]:
    """All-reduces arrays over the replicas of several workers, as one operation that a gradient tape differentiates.

    Their gradient is the all-reduce of the upstream gradients.

    Args:
        reduce: A function from an operation and concrete components to the results of each local replica.
        op: The operation.
        arrays: For each array, its components on this process.
        device_assignment: The devices of the replicas.

    Raises:
        TapeError: The reduction is a custom one, or the tape is outside the run.
    """
    _check(op, arrays)
    reduce = _joining(reduce, device_assignment)

    @jax.custom_vjp
    def run(lists: Lists) -> list[list[Any]]:
        return reduce(op, lists)

    def backward(_: None, cotangents: Lists) -> Any:
        # The derivative of integers is zero. Their cotangents may be float0 arrays, which cannot be added.
        results: list[Any] = [[None] * len(components) for components in arrays]
        places = [i for i, (first, *_) in enumerate(arrays) if jnp.issubdtype(first.dtype, jnp.inexact)]
        for i, totals in zip(places, reduce(op, [cotangents[i] for i in places]), strict=True):
            results[i] = totals
        return (results,)

    run.defvjp(lambda lists: (reduce(op, lists), None), backward)
    return run([list(components) for components in arrays])  # type: ignore[no-any-return]


def gather_recorded(
    reduce: Callable[[Any, Lists], list[list[Any]]],
    components: Sequence[Any],
    axis: int,
    device_assignment: DeviceAssignment,
    sizes_of_all: list[int] | None = None,
) -> Any:
    """All-gathers arrays over the replicas of several workers, as one operation that a gradient tape differentiates.

    Each gradient is a slice of the upstream gradients' sum.

    Args:
        reduce: As for `all_reduce_recorded`.
        components: The components on this process.
        axis: The axis along which they are joined.
        device_assignment: The devices of the replicas.
        sizes_of_all: A list that receives the size along `axis` of each replica's component.
    """
    _check(ReduceOp.SUM, [components])
    reduce = _joining(reduce, device_assignment)
    axis %= jnp.ndim(components[0])
    local = len(components)
    found = [] if sizes_of_all is None else sizes_of_all

    def forward(parts: Sequence[Any]) -> Any:
        if any(isinstance(part, Tracer) for part in parts):  # an outer tape differentiates what the inner one computes
            return gather_recorded(reduce, parts, axis, device_assignment, found), tuple(found)
        whole, found[:] = gather_with_sizes(parts, axis, device_assignment)
        return whole.addressable_data(0), tuple(found)

    def backward(sizes: Sequence[int], cotangent: jax.Array) -> Any:
        zeros = [jnp.zeros_like(cotangent)] * (local - 1)
        totals = reduce(ReduceOp.SUM, [[cotangent, *zeros]])[0]
        starts = [sum(sizes[:replica]) for replica in device_assignment.addressable_replicas]
        ends = [
            start + sizes[replica]
            for start, replica in zip(starts, device_assignment.addressable_replicas, strict=True)
        ]
        places = zip(totals, starts, ends, strict=True)
        return ([lax.slice_in_dim(total, start, end, axis=axis) for total, start, end in places],)

    @jax.custom_vjp
    def run(parts: Sequence[Any]) -> Any:
        return forward(parts)[0]

    run.defvjp(forward, backward)
    return run(list(components))


def _joining(
    reduce: Callable[[Any, Lists], list[list[Any]]], device_assignment: DeviceAssignment
) -> Callable[[Any, Lists], list[list[Any]]]:
    """Returns `reduce`, but without communication where a tape only finds dependencies: it adds what is here."""
    devices = [device_assignment.device_of(replica) for replica in device_assignment.addressable_replicas]

    def joined(components: Sequence[Any]) -> list[Any]:
        total = functools.reduce(jnp.add, [jax.device_put(component, devices[0]) for component in components])
        return [jax.device_put(total, device) for device in devices]

    return lambda op, arrays: list(map(joined, arrays)) if finds_dependencies() else reduce(op, arrays)


def _check(op: ReduceOp, arrays: Lists) -> None:
    if any(is_live_box(component) or is_tracked(component) for components in arrays for component in components):
        raise _several_workers_error(
            "a tape outside run would have to record an eager run with replicas on several workers"
        )
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise _several_workers_error(f"a tape would have to differentiate {op!r} over several workers, in eager code")


def refuse_recorded(results: Sequence[Any]) -> None:
    """Raises an error if a tape around an eager run of several workers has recorded how results were computed.

    The gradient of a variable would be the sum over the replicas of this worker alone.

    Raises:
        TapeError: A tape tracks a result.
    """
    if any(is_live_box(leaf) for result in results for leaf in structures.flatten(result)[0]):
        raise _several_workers_error("a tape outside run has recorded an eager run with replicas on several workers")


def _several_workers_error(found: str) -> TapeError:
    return TapeError(
        "GradientTape",
        found=found,
        rule="in eager code with several workers, a tape must be opened inside run, and can differentiate only SUM, "
        "MEAN and gather",
        remedy="open the tape inside the function given to run, or compile the whole step with mirrored.function, on "
        "per-replica batches of equal shapes (last_batch='pad' or 'drop'): a step on others runs eagerly",
    )
