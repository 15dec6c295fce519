"""A microbenchmark of one replica's part of a training step, without collectives, on one or more devices.

It measures the contention between devices that share cores, memory or a host process, instead of assuming it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored._typing import Operand
from mirrored.perf_model.step_cost import ReplicaProgram, TracedStep
from mirrored.perf_model.timing import timed

_AXIS = "rehearsal"
_TOGETHER, _EACH = PartitionSpec(), PartitionSpec(_AXIS)


@dataclasses.dataclass(frozen=True)
class ComputeBenchmark:
    """The measured time of one replica's part of a training step, run on several devices at once.

    Attributes:
        seconds: From the call until all devices are done.
        dispatch_seconds: The part of `seconds` that the host needs to start the devices.
    """

    seconds: float
    dispatch_seconds: float

    @property
    def compute_seconds(self) -> float:
        """The measured time minus the time that the host needs for dispatching.

        The time for dispatching is that of an empty program on the same devices.
        """
        return max(self.seconds - self.dispatch_seconds, 0.0)


def benchmark_compute(step: TracedStep, share: int, devices: int) -> ComputeBenchmark:
    """Measures the time of one replica's part of a training step, while `devices` devices run such a part at once.

    The measurement takes about half a second.

    Each replica has its own state and examples, of the same size as in the step. Replicas exchange nothing.

    Context: cross-replica, with no other program in the process.

    Args:
        step: The detected step.
        share: The number of examples per replica.
        devices: The number of devices, taken from the front of `step.devices`.
    """
    mesh = Mesh(np.array(step.devices[:devices]), (_AXIS,), axis_types=(AxisType.Auto,))
    part = step.part(share, devices)
    found, idle = timed(_call(part, mesh)), timed(_idle(part, mesh))
    # On CPUs the calling thread may also compute. Dispatch time is therefore at most the total time of an idle program.
    return ComputeBenchmark(found.seconds, min(found.dispatch_seconds, idle.seconds))


def _call(part: ReplicaProgram, mesh: Mesh) -> Callable[[], Any]:
    """Returns a function that runs one training step per call, on the donated state from the previous call."""
    assigned = [id(variable) for variable in part.pure.assigns]
    carried = [place for place, variable in enumerate(part.pure.reads) if id(variable) in assigned]
    order = [assigned.index(id(part.pure.reads[place])) for place in carried]

    def program(state: Sequence[Any], whole: Sequence[Any], operands: Sequence[Any]) -> Any:
        values = list(whole)
        for place, value in zip(carried, state, strict=True):
            values[place] = value
        outs = part.pure.call(values, operands)
        # JAX assigns a donated buffer to the first result of the same shape, so the new state is in the order of the
        # operands. The rest are variables that are assigned without being read, and the step's results.
        rest = [out for place, out in enumerate(outs) if place not in order]
        return [outs[place] for place in order], [jnp.atleast_1d(out) for out in rest]

    return _over(mesh, part, carried, program)


def _idle(part: ReplicaProgram, mesh: Mesh) -> Callable[[], Any]:
    """Returns a function that runs a program with the step's arrays but no computation, to measure dispatch time."""

    def program(state: Sequence[Any], whole: Sequence[Any], operands: Sequence[Any]) -> Any:
        return list(state), [one.ravel()[:1] for one in operands]

    return _over(mesh, part, list(range(len(part.state))), program)


def _over(mesh: Mesh, part: ReplicaProgram, carried: Sequence[int], program: Callable[..., Any]) -> Callable[[], Any]:
    """Returns a function that runs `program` on all devices of a mesh, each time on the state of the previous call."""
    operand_specs = [_EACH if spread else _TOGETHER for spread in part.is_spread]
    # The specs declare the state replicated, as in the step. Its copies may diverge here, so `check_vma` is off.
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


def _put(value: Operand, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    # Copied, because the state is donated: `device_put` returns the variable's own buffer if it is already in place.
    return jnp.array(jax.device_put(value, NamedSharding(mesh, spec)), copy=True)
