"""Running one replica's part of a step on several devices of this machine at once, with nothing exchanged.

So is measured, not assumed, what devices cost each other that share cores, memory or a process that feeds them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored.perf_model.step_cost import BatchShare, TracedStep
from mirrored.perf_model.timing import timed

_AXIS = "rehearsal"
_TOGETHER, _EACH = PartitionSpec(), PartitionSpec(_AXIS)


@dataclasses.dataclass(frozen=True)
class ComputeBenchmark:
    """A replica's part of the step, run by several devices at once.

    Attributes:
        seconds: From the call until all are done.
        dispatch_seconds: Of these, what it takes to start them.
    """

    seconds: float
    dispatch_seconds: float

    @property
    def compute_seconds(self) -> float:
        """What is left for the devices."""
        return max(self.seconds - self.dispatch_seconds, 0.0)


def benchmark_compute(step: TracedStep, share: int, devices: int) -> ComputeBenchmark:
    """Measures one replica's program on so many devices at once. Compiles it; then takes about half a second.

    The replicas have state and examples of their own, of the size that they have in the step, and exchange nothing.

    Context: cross-replica, with no other program in the process.

    Args:
        step: The observed step.
        share: Examples of each replica.
        devices: How many of `step.devices`.
    """
    mesh = Mesh(np.array(step.devices[:devices]), (_AXIS,), axis_types=(AxisType.Auto,))
    part = step.part(share, devices)
    found, idle = timed(_call(part, mesh)), timed(_idle(part, mesh))
    # More than an idle program takes in all is the devices' own time, which the thread spent on their behalf.
    return ComputeBenchmark(found.seconds, min(found.dispatch_seconds, idle.seconds))


def _call(part: BatchShare, mesh: Mesh) -> Callable[[], Any]:
    """Makes the next step: the state of the one before is given away, as in the compiled step."""
    assigned = [id(variable) for variable in part.pure.assigns]
    carried = [place for place, variable in enumerate(part.pure.reads) if id(variable) in assigned]
    order = [assigned.index(id(part.pure.reads[place])) for place in carried]

    def program(state: Sequence[Any], whole: Sequence[Any], operands: Sequence[Any]) -> Any:
        values = list(whole)
        for place, value in zip(carried, state, strict=True):
            values[place] = value
        outs = part.pure.call(values, operands)
        # JAX gives a donated buffer to the first result of its shape: results in the order of the operands. The rest
        # is what is assigned without being read, and the step's results.
        rest = [out for place, out in enumerate(outs) if place not in order]
        return [outs[place] for place in order], [jnp.atleast_1d(out) for out in rest]

    return _over(mesh, part, carried, program)


def _idle(part: BatchShare, mesh: Mesh) -> Callable[[], Any]:
    """The same arrays through a program that does nothing with them: what starting it on these devices takes."""

    def program(state: Sequence[Any], whole: Sequence[Any], operands: Sequence[Any]) -> Any:
        return list(state), [one.ravel()[:1] for one in operands]

    return _over(mesh, part, list(range(len(part.state))), program)


def _over(mesh: Mesh, part: BatchShare, carried: Sequence[int], program: Callable[..., Any]) -> Callable[[], Any]:
    """A function that runs `program` on every device of the mesh, from the state that it left the last time."""
    operand_specs = [_EACH if spread else _TOGETHER for spread in part.is_spread]
    # The state is said to be the same everywhere, as the step's own is, and need not be.
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=(_TOGETHER, _TOGETHER, operand_specs), out_specs=(_TOGETHER, _EACH),
        check_vma=False,
    )  # fmt: skip
    compiled = jax.jit(mapped, donate_argnums=0)
    state = [_put(part.state[place], mesh, _TOGETHER) for place in carried]
    whole = [None if i in carried else _put(value, mesh, _TOGETHER) for i, value in enumerate(part.state)]
    operands = [_put(one, mesh, spec) for one, spec in zip(part.operands, operand_specs, strict=True)]

    def call() -> Any:
        nonlocal state
        state, rest = compiled(state, whole, operands)
        return state, rest

    return call


def _put(value: Any, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    # The state is given away: never the variable's own buffer, which `device_put` returns where it lies there already.
    return jnp.array(jax.device_put(value, NamedSharding(mesh, spec)), copy=True)
