"""`TracingRunner`: traces the virtual replicas of one device into the SPMD program of a compiled run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from mirrored._jax import caches
from mirrored._jax.inlining import Staged, stage
from mirrored._jax.traces import CaptureTracer, Tracer, belongs_to, current_trace, is_staging_above, recording_parent
from mirrored._typing import Operand
from mirrored.collectives.fixed_order_tree import fan_out, fan_out_once
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.collectives.stacked import group_of, reduce_stacked
from mirrored.collectives.summation import apart, bounded, stack_isolated, unstack_isolated
from mirrored.errors import TransformError
from mirrored.runtime.ambient import ambient, announce_read, within
from mirrored.runtime.lockstep import LockStep
from mirrored.runtime.merge import Merge, is_outside, refused
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.runtime.variable_store import Bookkeeping, Captured, TracedReplicaStore
from mirrored.strategies.checks import is_given
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.padding import scope_of
from mirrored.topology.device_assignment import AXIS
from mirrored.values import structures
from mirrored.values.distributed_values import LocalPerReplica, Mirrored, PerReplica

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy
    from mirrored.variables.variable import Variable


@dataclasses.dataclass(frozen=True, eq=False)
class Passed(Bookkeeping):
    """The source of a capture tracer: a replicated argument of `Strategy.run`, as one virtual replica receives it."""

    value: Any
    local: int

    def __str__(self) -> str:
        return "a replicated argument of run"


class TracingRunner(ReplicaRunner):
    """Executes a compiled run: traces the virtual replicas of one device into one SPMD program for all devices.

    Attributes:
        algorithm: The all-reduce algorithm; `as_written` is its attribute of this name.
        replica_ids: The ids of the local replicas, if the program receives them as an input; None if it computes them.
        enclosed: For each local replica the traced arrays that functions of `merge_call` close over: what was called,
            the name, the array. They must be equal on all replicas.
    """

    store: TracedReplicaStore

    def __init__(self, strategy: Strategy) -> None:
        assert strategy.device_assignment is not None
        self.strategy = strategy
        self.device_assignment = strategy.device_assignment
        self.algorithm = strategy.cross_device_ops
        self.as_written = self.writes_halves = self.algorithm.as_written
        self.num_local = self.device_assignment.local
        self.stands_for_others = len(self.device_assignment.devices) > 1
        self.in_place = self.num_local == 1
        self.base_trace: Any = None
        self.created: dict[tuple[str, int], Any] = {}
        self.creations: dict[tuple[int, str], int] = {}
        self.outer_listeners = ambient().listeners
        self.group_info = group_of(self.device_assignment)
        # For reads in cross-replica context: a merge runs once per device, not once per replica.
        self.group_of_devices = dataclasses.replace(self.group_info, local=1, padded=0)
        self.summed: list[tuple[str, list[list[Any]]]] = []
        self.enclosed: list[list[tuple[str, str, Any]]] = [[] for _ in range(self.num_local)]
        self.replica_ids: Sequence[Any] | None = None
        self._lockstep: LockStep | None = None
        self._called: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] = (lambda: None, (), {})
        self.store = TracedReplicaStore(self)

    def run_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Traces ``fn`` once per replica of a device, synchronised at collectives, and combines the results."""
        outer = self._called
        try:
            results = self.trace_replicas(fn, args, kwargs)
            return structures.regroup(results, "Strategy.run", self.group, is_shared=self.is_shared)
        finally:
            self._called = outer

    def trace_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Traces ``fn`` once per replica of a device, synchronised at collectives; returns one result per replica."""

        def body(local: int) -> Callable[[], Any]:
            def call() -> Any:
                with self._marked(local), caches.for_replica(self.trace_key(local)):
                    own = structures.map_leaves(lambda leaf: self._argument(leaf, local), (tuple(args), kwargs))
                    return fn(*own[0], **own[1])

            return call

        self._called = (fn, args, kwargs)
        with within(store=self.current_store(), runner=self, replica=None) as here:
            contexts = [here.fork(replica=self._context(local)) for local in range(self.num_local)]
            if self.in_place:
                with within(replica=contexts[0].replica):
                    return [body(0)()]
            previous, self._lockstep = self._lockstep, LockStep("Strategy.run")
            try:
                return self._lockstep.run([body(local) for local in range(self.num_local)], contexts)
            finally:
                self._lockstep = previous
                caches.moved()

    def _marked(self, local: int) -> AbstractContextManager[Any]:
        """Marks the equations of a slot, where `padding.contain` must tell the slots apart."""
        return jax.named_scope(scope_of(local)) if self.group_info.padded else nullcontext()

    def _argument(self, leaf: object, local: int) -> Any:
        value = self.component(leaf, local)
        if (
            not self.store.separates_reads
            or isinstance(leaf, (LocalPerReplica, PerReplica))
            or not isinstance(value, Tracer)
        ):
            return value
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        return CaptureTracer(value.shape, value.dtype, Passed(value, local), weak_type=value.weak_type)

    def _context(self, local: int) -> ReplicaContext:
        def replica_id() -> Any:
            given = self.replica_ids
            return self._replica_at(local) if given is None else given[local]

        return ReplicaContext(self.strategy, replica_id, local)

    def _replica_at(self, local: int) -> Any:
        return self.device_assignment.slots.replica_at(lax.axis_index(AXIS), local)

    # ReplicaRunner

    def note_summed(self, called: str, rows: Sequence[Sequence[Any]]) -> None:
        traced = [list(row) for row in rows if all(belongs_to(gradient, self.base_trace) for gradient in row)]
        self.summed.append((called, traced))

    def run_merge(self, merge: Merge, payload: list[Any]) -> Any:
        self.enclosed[ambient().replica.local_index] += [
            (merge.name, name, array) for name, array in merge.enclosed if isinstance(array, Tracer)
        ]
        if not self.in_place:
            if recording_parent(current_trace()) is not self.base_trace and not is_outside(self):
                raise refused(merge)  # an assignment in a branch or loop body, whose trace is that of one replica
            assert self._lockstep is not None
            try:
                return self._lockstep.run_merge(merge, payload)
            finally:
                caches.resume_replica(self.trace_key(ambient().replica.local_index))
        with within(replica=None):
            return merge.complete([payload])[0]

    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        return list(self.algorithm.reduce_arrays(op, arrays, self.group_info))

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self.algorithm.all_reduce(op, arrays, self.group_info)

    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        return [jnp.concatenate(self.all_components(components), axis) for components in arrays]

    def gather_each(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[list[Any]]:
        if not self.as_written:
            return [self.group_info.for_each_local(whole) for whole in self.gather(arrays, axis)]
        return [[jnp.concatenate(list(stacked), axis) for stacked in each] for each in self.stack_each(arrays)]

    def stack_each(self, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Stacks all replicas' components of each array as ``[replicas, ...]``; one copy per replica of this device."""
        parts = [[jnp.asarray(component) for component in components] for components in arrays]
        return self.algorithm.stack_each(parts, self.group_info)

    def group(self, components: Sequence[Any]) -> Any:
        return LocalPerReplica(components, lambda: self.all_components(components), self.device_assignment)

    def is_shared(self, components: Sequence[Any]) -> bool:
        first = components[0]
        if not structures.identical(components):
            return isinstance(first, (bool, int, float, complex, str)) and _all_equal(components)
        # The local replicas stand for those of all devices. A value computed inside the run may vary between devices,
        # even if the local replicas return the same tracer; a value from outside is shared.
        if isinstance(first, Tracer):
            return not (self._is_inside(first) or self._is_component(first))
        # Eagerly, each replica makes an array of its own. Here one replica may stand for all.
        return self.num_local > 1 or not self.stands_for_others or is_given(first, *self._called)

    def component(self, value: object, local: int) -> Any:
        if isinstance(value, LocalPerReplica):
            return value.local[local]
        if isinstance(value, Mirrored):
            return value.value
        if isinstance(value, PerReplica):
            rows = self.device_assignment.slots.rows(value.stacked(self.device_assignment))
            return lax.dynamic_index_in_dim(rows, self._replica_at(local), keepdims=False)
        return value

    def components_each(self, value: object) -> list[Any]:
        values = super().components_each(value)
        first = values[0]
        is_one = structures.identical(values) if len(values) > 1 else not isinstance(value, PerReplica)
        if (
            not is_one
            or not self.as_written
            or self.device_assignment.num_replicas == 1
            or not _is_inexact_tracer(first)
        ):
            return self._apart_in_padding(self.isolated(values))
        return fan_out_once(self.group_info, self.isolated([first])[0])

    def _apart_in_padding(self, values: list[Any]) -> list[Any]:
        if not self.group_info.padded or self.algorithm.drops_padding:
            return values
        return [*values[:-1], apart(values[-1], self.group_info.is_real())]

    def isolated(self, values: Sequence[Any]) -> list[Any]:
        # A merge computes once per device what all of the device's replicas read, and its backward pass likewise.
        # Without boundaries, XLA may compute it inside the replicas' kernels, with bits that depend on their number.
        if not self.as_written or self.device_assignment.num_replicas == 1:
            return list(values)
        places = [i for i, value in enumerate(values) if _is_inexact_tracer(value)]
        results = list(values)
        for i, value in zip(places, bounded([values[i] for i in places]), strict=True):
            results[i] = value
        return results

    def reduced_component(self, value: object, local: int) -> Any:
        return value

    def _is_inside(self, tracer: Any) -> bool:
        # Includes values that a branch or a loop body inside the run has computed.
        return is_staging_above(recording_parent(tracer._trace), self.base_trace) is not None

    def _is_component(self, tracer: Any) -> bool:
        return isinstance(tracer, CaptureTracer) and isinstance(tracer.source, Captured)

    def all_components(self, components: Sequence[Any]) -> list[Any]:
        """Returns all replicas' components of an array (all-gather), given those of this device's replicas."""
        parts = [jnp.asarray(component) for component in components]
        stacked = stack_isolated([parts])[0] if self.as_written else jnp.stack(parts)
        if len(self.device_assignment.devices) > 1:
            stacked = self.device_assignment.slots.rows(lax.all_gather(stacked, AXIS, axis=0, tiled=True))
        return [stacked[i] for i in range(self.device_assignment.num_replicas)]


def _is_inexact_tracer(value: object) -> bool:
    return isinstance(value, Tracer) and bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _all_equal(components: Sequence[Any]) -> bool:
    return all(type(one) is type(components[0]) and one == components[0] for one in components)


# Gradients in a fixed order for a tape around a compiled run.
#
# JAX transposes `shard_map` by summing the cotangents of a replicated operand over the devices, after it has added
# those of a device's virtual replicas in the order of their uses. The order of that sum depends on the device
# assignment. Under an algorithm whose results are bit-identical, a run with a tape around it is built in another way:
#
# - a replicated operand enters as one row per device (`one_row_each`), and `fan_out` gives each virtual replica its own
#   copy, so that one fixed-order tree reduction sums the cotangents of all replicas;
# - a replicated result leaves as one row per device, of which `first_row` makes one value. The cotangent of that value
#   goes to the row of the first device alone.
#
# Neither communicates in the forward pass: every device reads and writes its own copy. An array that the replica
# function closes over enters in another way, so a gradient with respect to it is refused (`_without_gradient`).
#
# The forward and backward rules call functions with custom rules, themselves included. Under nested tapes the outer one
# differentiates what the rules of the inner one compute, and JAX's transpose of the raw `shard_map` would sum the equal
# rows of a cotangent: the second derivative would be too large by the number of devices.


def has_gradient(value: Operand) -> bool:
    """Returns whether `value` is float or complex, so that gradients with respect to it exist."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def with_fixed_order(
    body: Staged, runner: TracingRunner, shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
) -> Staged:
    """Rewrites a run's program so that the gradients of captured values are summed in a fixed order.

    The new body has one constant per captured value, which `fan_out` copies to the local replicas.

    Args:
        body: The body, traced with `TracedReplicaStore.separates_reads`.
        runner: The runner that traced it.
        shapes: The shapes and dtypes of its inputs.
        axes: The mesh axis and its size.
    """
    once = functools.partial(_Constants, runner)

    def joined(*inputs: Any) -> list[Any]:
        constants = once()
        return body([constants.of(constant) for constant in body.constants], inputs)

    return stage(joined, shapes, axes=axes)


class _Constants:
    """Supplies the values that a traced body captures; one `fan_out` copies each to all local replicas."""

    def __init__(self, runner: TracingRunner) -> None:
        self._runner = runner
        self._copies: dict[int, list[Any]] = {}

    def of(self, constant: Operand) -> Any:
        source = constant.source if isinstance(constant, CaptureTracer) else None
        match source:
            case Captured(variable=variable, local=int(local)) if not variable.per_replica:
                return self._copy(variable, self._runner.store.capture(variable, None), local)
            case Captured(variable=variable, local=None) if has_gradient(constant):
                # Read in cross-replica context, once per device.
                [value] = fan_out(self._runner.group_of_devices, constant)
                return value
            case Passed(value=value, local=local):
                return self._copy(value, value, local)
            case None if isinstance(constant, jax.Array) and has_gradient(constant):
                return _without_gradient(constant)
        return constant

    def _copy(self, key: Any, value: Operand, local: int) -> Any:
        if id(key) not in self._copies:
            self._copies[id(key)] = fan_out(self._runner.group_info, value)
        return self._copies[id(key)][local]


@jax.custom_vjp
def _without_gradient(value: object) -> Any:
    return value


def _refuse_gradient(_: None, cotangent: jax.Array) -> Any:
    raise TransformError(
        "GradientTape.gradient",
        found=f"a gradient flows to an array {cotangent.dtype}{list(cotangent.shape)} that the replica function closes "
        "over",
        rule="with deterministic=True, gradients can flow only to variables and to arguments of run",
        remedy="pass the array to run as an argument: strategy.run(fn, args=(batch, array))",
    )


_without_gradient.defvjp(lambda value: (_without_gradient(value), None), _refuse_gradient)


def _over(mesh: Mesh, function: Callable[[Any], Any], *, given: PartitionSpec, gives: PartitionSpec) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=gives, check_vma=False)


_ROWS, _EQUAL = PartitionSpec(AXIS), PartitionSpec()


def _to_rows(mesh: Mesh, value: object) -> Any:
    return _over(mesh, lambda one: one[None], given=_EQUAL, gives=_ROWS)(value)


def _to_equal(mesh: Mesh, rows: jax.Array) -> Any:
    return _over(mesh, lambda row: row[0], given=_ROWS, gives=_EQUAL)(rows)


def _to_first_row(mesh: Mesh, value: object) -> Any:
    only_first = lambda one: jnp.where(lax.axis_index(AXIS) == 0, one, jnp.zeros_like(one))[None]  # noqa: E731
    return _over(mesh, only_first, given=_EQUAL, gives=_ROWS)(value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def first_row(mesh: Mesh, rows: jax.Array) -> Any:
    """Converts an array ``[devices, ...]``, whose rows (one per device) are equal, to one replicated row.

    The cotangent goes to the first device alone.
    """
    return _to_equal(mesh, rows)


first_row.defvjp(lambda mesh, rows: (first_row(mesh, rows), None), lambda mesh, _, value: (_to_first_row(mesh, value),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def one_row_each(mesh: Mesh, value: object) -> Any:
    """Converts a replicated value to an array ``[devices, ...]`` that has the same row on each device.

    The rows of the cotangent are equal: `fan_out` has summed them over all replicas.
    """
    return _to_rows(mesh, value)


one_row_each.defvjp(
    lambda mesh, value: (one_row_each(mesh, value), None), lambda mesh, _, rows: (first_row(mesh, rows),)
)


def unstack_unfused(arrays: Sequence[jax.Array]) -> list[list[Any]]:
    """Splits stacked arrays into the replicas' components, so that XLA fuses neither the split nor its derivative.

    The backward pass stacks the cotangents behind a fusion boundary too.
    """
    differentiable = [array for array in arrays if has_gradient(array)]
    others = iter(unstack_isolated([array for array in arrays if not has_gradient(array)]))
    rows = iter(_unstack(differentiable) if differentiable else ())
    return [next(rows) if has_gradient(array) else next(others) for array in arrays]


@jax.custom_vjp
def _unstack(arrays: Sequence[jax.Array]) -> list[list[Any]]:
    return unstack_isolated(arrays)


_unstack.defvjp(
    lambda arrays: (_unstack(arrays), None),
    lambda _, cotangents: (stack_isolated(cotangents),),
)


def announced_components(variable: Variable, stacked: jax.Array) -> Any:
    """Notifies tapes that a sync-on-read variable is read, and returns the stacked components of all replicas.

    Like `component_reads.announced_components`, but the strategy's algorithm sums the components' cotangents.
    """
    if not has_gradient(variable):
        return stacked
    return _components_of(variable.strategy, stacked, announce_read(variable, lax.stop_gradient(stacked[0])))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _components_of(strategy: Strategy, stacked: jax.Array, one: object) -> Any:
    del strategy, one
    return stacked


def _sum_components(strategy: Any, _: None, cotangents: Any) -> tuple[Any, Any]:
    [total] = reduce_stacked(strategy.cross_device_ops, ReduceOp.SUM, [cotangents], strategy.device_assignment)
    return jnp.zeros_like(cotangents), total


_components_of.defvjp(lambda strategy, stacked, one: (_components_of(strategy, stacked, one), None), _sum_components)
