"""`TracingRunner`: the local replicas of one device in a compiled run, their merges, and their access to variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from mirrored._jax import jit_key
from mirrored._jax.capture import CaptureTracer
from mirrored._jax.traces import belongs_to, is_staging_above, is_tracer, recording_parent
from mirrored.collectives.fixed_order_tree import fan_out_once
from mirrored.collectives.fusion_boundaries import stack_isolated
from mirrored.collectives.stacked import group_of
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.lockstep import LockStep
from mirrored.runtime.merging import Merge, ReplicaRunner
from mirrored.runtime.variable_store import Bookkeeping, ReplicaStore
from mirrored.strategies.context import ReplicaContext
from mirrored.topology.device_assignment import AXIS
from mirrored.values import structures
from mirrored.values.distributed_values import LocalPerReplica, Mirrored, PerReplica

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


@dataclasses.dataclass(frozen=True)
class Captured(Bookkeeping):
    """The source of a capture tracer in the body: a variable, or one local replica's component of it."""

    variable: Any
    local: int | None

    def __str__(self) -> str:
        return f"variable {self.variable.name!r}"


@dataclasses.dataclass(frozen=True, eq=False)
class Passed(Bookkeeping):
    """The source of a capture tracer in the body: a replicated argument of the run, as one local replica reads it."""

    value: Any
    local: int

    def __str__(self) -> str:
        return "a replicated argument of run"


class TracingRunner(ReplicaRunner):
    """Traces the local replicas of one device together, into one SPMD program for all devices."""

    def __init__(self, strategy: Strategy) -> None:
        assert strategy.device_assignment is not None
        self.strategy = strategy
        self.device_assignment = strategy.device_assignment
        self.num_local = self.device_assignment.local
        self.stands_for_others = len(self.device_assignment.devices) > 1
        self.in_place = self.num_local == 1
        self.writes_halves = strategy.cross_device_ops.as_written
        self.base_trace: Any = None
        self.side_inputs: dict[int, Any] = {}
        self.side_results: Any = None
        self.created: dict[tuple[str, int], Any] = {}
        self.creations: dict[tuple[int, str], int] = {}
        self.group_info = group_of(self.device_assignment)
        # For reads in cross-replica context: a merge runs once per device, not once per replica.
        self.group_of_devices = dataclasses.replace(self.group_info, local=1)
        # Whether replicated values are captured once per local replica, so that each has its own cotangent (see
        # `outer_tape`).
        self.separates_reads = False
        self.summed: list[tuple[str, list[Any]]] = []
        self._captured: dict[tuple[int, int | None], CaptureTracer] = {}
        self._lockstep = LockStep("Strategy.run")
        self.store = ReplicaStore(
            self.num_local,
            captures=True,
            base=self._base,
            whole_base=self._whole_base,
            join=self._join,
            split=self.component,
        )

    def run_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Traces ``fn`` once per local replica, in lock-step, and returns one structure of cross-replica values."""
        return structures.regroup(
            self.trace_replicas(fn, args, kwargs), "Strategy.run", self.group, is_shared=self.is_shared
        )

    def trace_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> list[Any]:
        """Traces ``fn`` once per local replica, in lock-step, and returns one result per local replica."""

        def body(local: int) -> Callable[[], Any]:
            def call() -> Any:
                own = structures.map_leaves(lambda leaf: self._argument(leaf, local), (tuple(args), kwargs))
                with jit_key.for_replica(self.trace_key(local)):
                    return fn(*own[0], **own[1])

            return call

        with within(store=self.store, runner=self, replica=None) as here:
            contexts = [here.fork(replica=self._context(local)) for local in range(self.num_local)]
            if self.in_place:
                with within(replica=contexts[0].replica):
                    return [body(0)()]
            previous, self._lockstep = self._lockstep, LockStep("Strategy.run")
            try:
                return self._lockstep.run([body(local) for local in range(self.num_local)], contexts)
            finally:
                self._lockstep = previous
                jit_key.moved()

    def _argument(self, leaf: Any, local: int) -> Any:
        value = self.component(leaf, local)
        if not self.separates_reads or isinstance(leaf, (LocalPerReplica, PerReplica)) or not is_tracer(value):
            return value
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        return CaptureTracer(value.shape, value.dtype, Passed(value, local), weak_type=value.aval.weak_type)

    def _context(self, local: int) -> ReplicaContext:
        def replica_id() -> Any:
            return lax.axis_index(AXIS) * self.num_local + local

        return ReplicaContext(self.strategy, replica_id, local)

    # ReplicaRunner

    def note_summed(self, called: str, gradients: Sequence[Any]) -> None:
        own = [gradient for gradient in gradients if belongs_to(gradient, self.base_trace)]
        self.summed.append((called, own))

    def run_merge(self, merge: Merge, payload: Any) -> Any:
        if not self.in_place:
            result = self._lockstep.run_merge(merge, payload)
            jit_key.resume_replica(self.trace_key(ambient().replica.local_index))
            return result
        with within(replica=None):
            return merge.run([payload])[0]

    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        return list(self.strategy.cross_device_ops.reduce_arrays(op, arrays, self.group_info))

    def all_reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self.strategy.cross_device_ops.all_reduce(op, arrays, self.group_info)

    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        return [jnp.concatenate(self.all_components(components), axis) for components in arrays]

    def gather_each(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[list[Any]]:
        if not self.strategy.cross_device_ops.as_written:
            return [[whole] * self.num_local for whole in self.gather(arrays, axis)]
        return [[jnp.concatenate(list(stacked), axis) for stacked in each] for each in self.stack_each(arrays)]

    def stack_each(self, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Stacks the components of all replicas, ``[replicas, ...]``, once per local replica."""
        parts = [[jnp.asarray(component) for component in components] for components in arrays]
        return self.strategy.cross_device_ops.stack_each(parts, self.group_info)

    def group(self, components: Sequence[Any]) -> Any:
        return LocalPerReplica(components, lambda: self.all_components(components), self.device_assignment)

    def is_shared(self, components: Sequence[Any]) -> bool:
        first = components[0]
        if not structures.identical(components):
            return (
                not is_tracer(first) and isinstance(first, (bool, int, float, complex, str)) and _all_equal(components)
            )
        # The local replicas stand for those of all devices. A value computed inside the run may vary between devices,
        # even if the local replicas return the same tracer; a value from outside is shared.
        return not (is_tracer(first) and (self._is_inside(first) or self._is_component(first)))

    def component(self, value: Any, local: int) -> Any:
        if isinstance(value, LocalPerReplica):
            return value.local[local]
        if isinstance(value, Mirrored):
            return value.value
        if isinstance(value, PerReplica):
            return lax.dynamic_index_in_dim(
                value.stacked(self.device_assignment), lax.axis_index(AXIS) * self.num_local + local, keepdims=False
            )
        return value

    def components_each(self, value: Any) -> list[Any]:
        values = super().components_each(value)
        first = values[0]
        is_one = len(values) > 1 and structures.identical(values) and is_tracer(first)
        if not is_one or not self.strategy.cross_device_ops.as_written or not jnp.issubdtype(first.dtype, jnp.inexact):
            return values
        return fan_out_once(self.group_info, first)

    def reduced_component(self, value: Any, local: int) -> Any:
        return value

    def _is_inside(self, tracer: Any) -> bool:
        # Includes values that a branch or a loop body inside the run has computed.
        return is_staging_above(recording_parent(tracer._trace), self.base_trace) is not None

    def _is_component(self, tracer: Any) -> bool:
        return isinstance(tracer, CaptureTracer) and isinstance(tracer.source, Captured)

    def all_components(self, components: Sequence[Any]) -> list[Any]:
        """Returns the components of all replicas, in replica order, given those of this device."""
        parts = [jnp.asarray(component) for component in components]
        stacked = stack_isolated([parts])[0] if self.strategy.cross_device_ops.as_written else jnp.stack(parts)
        if len(self.device_assignment.devices) > 1:
            stacked = lax.all_gather(stacked, AXIS, axis=0, tiled=True)
        return [stacked[i] for i in range(self.device_assignment.num_replicas)]

    # Variables

    def _base(self, variable: Any, local: int) -> Any:
        apart = self.separates_reads and jnp.issubdtype(variable.dtype, jnp.inexact)
        return self.capture(variable, local if variable.per_replica or apart else None)

    def _whole_base(self, variable: Any) -> Any:
        if not variable.per_replica:
            return self.capture(variable, None)
        return jnp.stack(self.all_components([self.capture(variable, k) for k in range(self.num_local)]))

    def capture(self, variable: Any, local: int | None) -> CaptureTracer:
        """Returns the capture tracer of a variable, or of one local replica's component of it."""
        key = (id(variable), local)
        if key not in self._captured:
            self._captured[key] = CaptureTracer(variable.shape, variable.dtype, Captured(variable, local))
        return self._captured[key]

    def _join(self, variable: Any, components: Sequence[Any], where: Sequence[str]) -> Any:
        if variable.per_replica:
            return jnp.stack(self.all_components(components))
        return components[0]


def _all_equal(components: Sequence[Any]) -> bool:
    return all(type(one) is type(components[0]) and one == components[0] for one in components)
