"""Collectives over several processes under a tape in eager code, with VJP rules that are collectives as well.

JAX cannot differentiate through the computation of other processes. Each collective therefore has its own VJP rule. The
forward and the backward pass run on concrete values, in the same order on all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.boxes import is_live_box
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import TapeError
from mirrored.strategies.gathering import gather_with_sizes
from mirrored.topology.device_assignment import DeviceAssignment

Lists = Sequence[Sequence[Any]]


def all_reduce_recorded(reduce: Callable[[Any, Lists], list[list[Any]]], op: Any, arrays: Lists) -> list[list[Any]]:
    """All-reduces arrays. The gradient is the all-reduce of the upstream gradients by the same operation.

    Args:
        reduce: A function from an operation and concrete components to the results of each local replica.
        op: The operation.
        arrays: For each array, its components on this process.

    Raises:
        TapeError: The reduction is a custom one, or the tape is outside the run.
    """
    _check(op, arrays)

    @jax.custom_vjp
    def run(lists: Any) -> Any:
        return reduce(op, lists)

    run.defvjp(lambda lists: (reduce(op, lists), None), lambda _, cotangents: (reduce(op, cotangents),))
    return run([list(components) for components in arrays])  # type: ignore[no-any-return]


def gather_recorded(
    reduce: Callable[[Any, Lists], list[list[Any]]],
    components: Sequence[Any],
    axis: int,
    device_assignment: DeviceAssignment,
) -> Any:
    """Gathers components. The gradient is each replica's slice of the sum of all workers' upstream gradients."""
    _check(ReduceOp.SUM, [components])
    axis %= jnp.ndim(components[0])
    local = len(components)

    def forward(parts: Any) -> Any:
        whole, sizes = gather_with_sizes(parts, axis, device_assignment)
        return whole.addressable_data(0), sizes

    def backward(sizes: Any, cotangent: Any) -> Any:
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
    def run(parts: Any) -> Any:
        return forward(parts)[0]

    run.defvjp(forward, backward)
    return run(list(components))


def _check(op: Any, arrays: Lists) -> None:
    outside = any(is_live_box(component) for components in arrays for component in components)
    if not outside and op in (ReduceOp.SUM, ReduceOp.MEAN):
        return
    raise TapeError(
        "GradientTape",
        found="a tape outside run, around an eager run with replicas on several workers"
        if outside
        else f"the gradient of {op!r} over several workers, in eager code",
        rule="in eager code with several workers, a tape must be opened inside run, and differentiates only SUM, MEAN "
        "and gather",
        remedy="open the tape inside the function given to run, or compile the whole step with mirrored.function",
    )
