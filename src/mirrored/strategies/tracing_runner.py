"""`TracingRunner`: traces the virtual replicas of one device into the SPMD program of a compiled `run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax import caches
from mirrored._jax.boxes import Array, is_live_box
from mirrored._jax.jaxprs import is_inexact, is_reference
from mirrored._jax.placement import unplaced
from mirrored._jax.traces import CaptureTracer, Tracer, belongs_to, current_trace, is_staging_above, trace_below_tapes
from mirrored._typing import Leaf, Operand
from mirrored.analysis.loss_scale_check import SummedGradients
from mirrored.analysis.replication_check import Origin
from mirrored.collectives.fixed_order_tree import fan_out_once
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.collectives.stacked import group_of
from mirrored.collectives.summation import bounded, stack_isolated, without_padding_gradient
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.component_reads import stacked_of
from mirrored.runtime.lockstep import LockStep
from mirrored.runtime.merge import Merge, is_outside, under_transform_error
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.runtime.staged_values import Bookkeeping, Captured, CreatedByLine
from mirrored.runtime.variable_store import TracedReplicaStore
from mirrored.strategies.checks import is_given
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.padding import MERGE, scope_of
from mirrored.topology.device_assignment import AXIS
from mirrored.values import structures
from mirrored.values.attributes import has_attribute
from mirrored.values.distributed_values import LocalPerReplica, Mirrored, PerReplica

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicatedArgument(Bookkeeping):
    """Identifies a tracer as one virtual replica's copy of a replicated argument of `run`, or of a closed-over value.

    Attributes:
        value: The argument or closed-over value.
        local: The index of the replica among those of its device.
    """

    value: Any
    local: int

    def __str__(self) -> str:
        return "a replicated argument of run"


def as_passed(leaf: Leaf) -> Any:
    """Returns the `run` argument that a tracer stands for; returns any other leaf unchanged."""
    return leaf.source.value if is_replica_copy(leaf) else leaf


def replica_copy(value: jax.Array, local: int) -> CaptureTracer:
    """Returns a tracer that stands for one virtual replica's copy of a replicated value."""
    return CaptureTracer(value.shape, value.dtype, ReplicatedArgument(value, local), weak_type=value.weak_type)


def is_replica_copy(constant: Operand) -> bool:
    """Returns whether a constant of a traced run is a virtual replica's copy of a value."""
    return isinstance(constant, CaptureTracer) and isinstance(constant.source, ReplicatedArgument)


class TracingRunner(ReplicaRunner):
    """Executes a compiled `run`: traces the virtual replicas of one device into one SPMD program for all devices.

    Attributes:
        algorithm: The all-reduce algorithm.
        bit_identical: Whether results must be bit-identical on any number of devices.
        replica_ids: The ids of the local replicas, if the program receives them as an input; None if it computes them.
    """

    store: TracedReplicaStore

    def __init__(self, strategy: Strategy) -> None:
        assert strategy.device_assignment is not None
        self.strategy = strategy
        self.device_assignment = strategy.device_assignment
        self.algorithm = strategy.cross_device_ops
        self.bit_identical = self.writes_halves = self.algorithm.requires_bit_identity
        self.num_local = self.device_assignment.local
        self.stands_for_others = len(self.device_assignment.devices) > 1
        self.in_place = self.num_local == 1
        self.base_trace: Any = None
        self.run_trace: Any = None
        self.created = CreatedByLine()
        self.creations: dict[tuple[int, str], int] = {}
        self.outer_listeners = ambient().listeners
        store = ambient().store
        self._is_recorded = store is not None and store.outermost().under_tape
        self.group_info = group_of(self.device_assignment)
        # For reads in cross-replica context: a merge runs once per device, not once per replica.
        self.group_of_devices = dataclasses.replace(self.group_info, local=1, padded=0)
        self.summed: list[SummedGradients] = []
        self._enclosed: list[list[tuple[str, str, Any]]] = [[] for _ in range(self.num_local)]
        self.replica_ids: Sequence[Any] | None = None
        self._lockstep = LockStep("Strategy.run")
        self._called: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] = (lambda: None, (), {})
        self._is_nested = False
        self.store = TracedReplicaStore(self)
        self._tokens: list[caches.OwnTraces] = []

    def run_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Traces ``fn`` once per replica of a device, synchronised at collectives, and combines the results."""
        outer = self._called, self._is_nested, self.run_trace
        self._is_nested, self.run_trace = True, current_trace()
        try:
            *results, last = self.trace_replicas(fn, args, kwargs)
            results.append(structures.map_leaves(self._sent_by_last, last))
            return structures.regroup(results, "Strategy.run", self.group, are_shared=self.are_shared)
        finally:
            self._called, self._is_nested, self.run_trace = outer

    def enclosed(self) -> list[tuple[tuple[str, str, Any], ...]]:
        """Returns the arrays that functions of `merge_call` close over, for the replication check.

        Each array has one entry per local replica: what was called, the name, the array. Arrays that are concrete on
        all local replicas are left out, because the merges have compared them.
        """
        columns = zip(*self._enclosed, strict=True)
        return [column for column in columns if any(isinstance(array, Tracer) for *_, array in column)]

    def forget_values(self) -> None:
        """Drops the values of the trace, which ends: they are invalid then. Names, lines, errors and numbers remain.

        `jax.checking_leaks` reports tracers to which something refers after their trace.
        """
        self._called, self.replica_ids = (lambda: None, (), {}), None
        self._merged.clear()
        self._enclosed = [[] for _ in range(self.num_local)]
        self.summed = [summed._replace(rows=[[None] * len(row) for row in summed.rows]) for summed in self.summed]
        self.unchanged[:] = [(None, None, error) for _, _, error in self.unchanged]
        self.store.staged = {key: entry.without_values() for key, entry in self.store.staged.items()}
        self.store.joined = [entry.without_values() for entry in self.store.joined]

    def trace_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Traces ``fn`` once per replica of a device, synchronised at collectives; returns one result per replica."""

        def body(local: int) -> Callable[[], Any]:
            def call() -> Any:
                with self._marked(local), caches.for_replica(self.trace_key(local)):
                    own = structures.map_leaves(lambda leaf: self._argument(leaf, local), (tuple(args), kwargs))
                    return fn(*own[0], **own[1])

            return call

        self._called = (fn, args, kwargs)
        tokens, self._tokens = self._tokens, caches.replica_tokens(self.num_local)
        try:
            return self._trace_each([body(local) for local in range(self.num_local)])
        finally:
            self._tokens = tokens

    def _trace_each(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        with within(store=self.current_store(), runner=self, replica=None) as here:
            contexts = [here.fork(replica=self._context(local)) for local in range(self.num_local)]
            if self.in_place:
                with within(replica=contexts[0].replica):
                    return [bodies[0]()]
            previous, self._lockstep = self._lockstep, LockStep("Strategy.run")
            try:
                return self._lockstep.run(bodies, contexts)
            finally:
                self._lockstep = previous
                caches.renew_if_read()

    def _marked(self, local: int) -> AbstractContextManager[Any]:
        """Returns a context manager that marks traced equations with the index of a local replica.

        It marks nothing if a device has one replica. `padding` and `fusing` read the marks.
        """
        return jax.named_scope(scope_of(local)) if self.num_local > 1 else nullcontext()

    def _argument(self, leaf: object, local: int) -> Any:
        """Returns a replica's component of an argument of `run`.

        If reads are separated (`TracedReplicaStore.separates_reads`), each replica gets another tracer for a replicated
        value, so that each has its own cotangent.
        """
        value = self.component(leaf, local)
        if (
            not self.store.separates_reads
            or isinstance(leaf, (LocalPerReplica, PerReplica))
            or not isinstance(value, Tracer)
        ):
            return value
        if not jnp.issubdtype(value.dtype, jnp.inexact) or self._is_inside(value):
            return value
        return replica_copy(as_passed(value), local)

    def _context(self, local: int) -> ReplicaContext:
        def replica_id() -> Any:
            given = self.replica_ids
            return self._replica_at(local) if given is None else given[local]

        return ReplicaContext(self.strategy, replica_id, local)

    def _replica_at(self, local: int) -> Any:
        return self.device_assignment.slots.replica_at(lax.axis_index(AXIS), local)

    def may_be_watched(self, value: Leaf) -> bool:
        """Returns whether a value is a concrete array that a tape around the run watches, or may watch.

        A tape around the compiled function may call its program again, and watch other arrays then.
        """
        if type(value) is not Array or not is_inexact(value):
            return False
        return self._is_recorded or any(listener.tracks(value) for listener in self.outer_listeners)

    def is_from_outside(self, constant: Operand) -> bool:
        """Returns whether a constant of the traced run is a value of the code around the run that may have a gradient.

        It is a tracer, or an array that is concrete, over which the function closes, and that a tape around the run
        watches. Variables, and virtual replicas' copies of values, are not such constants.
        """
        is_traced = isinstance(constant, Tracer) and not isinstance(constant, CaptureTracer)
        if not (is_traced or is_live_box(constant) or self.may_be_watched(constant)):
            return False
        return is_inexact(constant.aval) and not is_reference(constant.aval)

    # ReplicaRunner

    def trace_key(self, local: int) -> Hashable:
        return self._tokens[local]

    def note_summed(self, called: str, rows: Sequence[Sequence[Any]], *, are_divided: bool = False) -> None:
        traced = [list(row) for row in rows if all(belongs_to(gradient, self.base_trace) for gradient in row)]
        self.summed.append(SummedGradients(called, traced, are_divided))

    def run_merge(self, merge: Merge, payload: list[Any]) -> Any:
        self._enclosed[ambient().replica.local_index] += [(merge.name, name, array) for name, array in merge.enclosed]
        if not self.in_place:
            is_in_run = trace_below_tapes(current_trace()) is trace_below_tapes(self.run_trace)
            if not is_in_run and not is_outside(self):
                # an assignment in a branch or loop body, whose trace is that of one replica
                raise under_transform_error(merge)
            if self.bit_identical and not merge.calls_user_code:
                payload = [self._own_copy(value) for value in payload]
            try:
                return self._lockstep.run_merge(merge, payload)
            finally:
                if self._tokens:  # none if the run has been given up (`runtime.lockstep`)
                    caches.resume_replica(self.trace_key(ambient().replica.local_index))
        # The mark tells `fixed_order_runs` that an equation reads values once per device. All-reduces read their own.
        is_marked = self.bit_identical and merge.nested is None
        with within(replica=None), jax.named_scope(MERGE) if is_marked else nullcontext():
            return merge.complete([payload])[0]

    def sent(self, payload: Sequence[Any]) -> list[Any]:
        is_last = self._is_nested and ambient().replica.local_index == self.num_local - 1
        return [self._sent_by_last(value) for value in payload] if is_last else list(payload)

    def _sent_by_last(self, value: Leaf) -> Any:
        """Returns what the last slot passes on in a run inside of a `merge_call`; no cotangent arrives if it is empty.

        The replicas of such a run may close over values of the merge, to which JAX adds the cotangents of all slots.
        """
        if not self.group_info.padded or not _is_inexact_tracer(value) or not self._is_inside(value):
            return value
        return without_padding_gradient(value, self.group_info.is_real())

    def _own_copy(self, value: Leaf) -> Any:
        """Returns the replica's own copy of a value from outside that it passes to a collective.

        Otherwise JAX would add the cotangents of the device's replicas, that of an empty slot included.
        """
        if not self.is_from_outside(value) or (isinstance(value, Tracer) and self._is_inside(value)):
            return value
        return replica_copy(value, ambient().replica.local_index)

    def _components(self, components: Sequence[Any]) -> list[Any]:
        """Returns the operands of a collective; no gradient flows from that of an empty slot to a value from outside.

        All slots of a device may pass the same value, and JAX adds their cotangents. In a bit-identical program each
        slot has a copy (`_own_copy`).
        """
        *others, last = components
        return [*others, self._from_last(last)]

    def _from_last(self, value: Leaf) -> Any:
        if not self.group_info.padded or (self.bit_identical and not self.is_from_outside(value)):
            return value
        # A tape may watch a concrete array, also one around the compiled function that calls its program later.
        if type(value) is not Array and (not _is_inexact_tracer(value) or self._is_inside(value)):
            return value
        return without_padding_gradient(value, self.group_info.is_real())

    def operands(self, payloads: Sequence[list[Any]]) -> list[list[Any]]:
        # In the derivative that the tape takes of the collective, `_components` sees tracers of that derivative.
        *others, last = payloads
        return [*others, list(map(self._from_last, last))]

    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        return list(self.algorithm.reduce_arrays(op, list(map(self._components, arrays)), self.group_info))

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self.algorithm.all_reduce(op, list(map(self._components, arrays)), self.group_info)

    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        return [jnp.concatenate(self.all_components(components), axis) for components in arrays]

    def gather_each(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[list[Any]]:
        if not self.bit_identical:
            return [self.group_info.for_each_local(whole) for whole in self.gather(arrays, axis)]
        return [[jnp.concatenate(list(stacked), axis) for stacked in each] for each in self.stack_each(arrays)]

    def stack_each(self, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """All-gathers each array over replicas as ``[replicas, ...]``; returns one copy per replica of this device."""
        parts = [[jnp.asarray(component) for component in self._components(components)] for components in arrays]
        return self.algorithm.stack_each(parts, self.group_info)

    def group(self, components: Sequence[Any]) -> Any:
        return LocalPerReplica(components, lambda: self.all_components(components), self.device_assignment)

    def group_argument(self, components: Sequence[Any]) -> Any:
        # A merge's backward pass gives an empty slot what it gives the slot before, so that loops of the slot end.
        are_traced = all(map(_is_inexact_tracer, components))
        is_alike = are_traced and len({(one.shape, one.dtype) for one in components[-2:]}) == 1
        return self.group(self.group_info.sent(self._components(components)) if is_alike else components)

    def is_shared(self, components: Sequence[Any]) -> bool:
        components = [as_passed(component) for component in components]
        first = components[0]
        if not structures.identical(components):
            return _are_equal_constants(components)
        # The local replicas stand for those of all devices. A value computed inside the run may vary between devices,
        # even if the local replicas return the same tracer; a value from outside is shared.
        if isinstance(first, Tracer):
            return not (self._is_inside(first) or self._is_component(first))
        # A concrete array that the replica function has made is per replica, as in an eager run, where each replica
        # makes its own. If one traced replica stands for all, identity does not show that: it must have been given.
        return self.num_local > 1 or not self.stands_for_others or is_given(first, *self._called)

    def component(self, value: object, local: int) -> Any:
        if isinstance(value, LocalPerReplica):
            return value.local[local]
        if isinstance(value, Mirrored):
            return value.value
        if isinstance(value, PerReplica):
            # A concrete array has the mesh of its sharding, which does not exist inside of the run.
            stacked = unplaced(stacked_of(value, self.device_assignment, self.outer_listeners))
            rows = self.device_assignment.slots.rows(stacked)
            row = lax.dynamic_index_in_dim(rows, self._replica_at(local), keepdims=False)
            is_last = self.group_info.padded and local == self.num_local - 1
            return without_padding_gradient(row, self.group_info.is_real()) if is_last else row
        return value

    def components_each(self, value: object) -> list[Any]:
        values = super().components_each(value)
        first = values[0]
        is_one = structures.identical(values) if len(values) > 1 else not isinstance(value, PerReplica)
        if not is_one or not self.bit_identical or not _is_inexact_tracer(first):
            # The backward pass selects behind the boundary, where it changes no bits of the replica's kernels.
            return self.isolated(self._without_padding_gradient(values))
        return fan_out_once(self.group_info, self.isolated([first])[0])

    def _without_padding_gradient(self, values: list[Any]) -> list[Any]:
        # An empty slot repeats the value of the slot before, whose cotangent would otherwise contain that of both.
        # A variable or a concrete value stays the same object in all slots; no gradient flows through it.
        if not self.group_info.padded or not _is_inexact_tracer(values[-1]):
            return values
        return [*values[:-1], without_padding_gradient(values[-1], self.group_info.is_real())]

    def isolated(self, values: Sequence[Any]) -> list[Any]:
        # A merge computes once per device what all of the device's replicas read, and its backward pass likewise.
        # Without boundaries, XLA may compute it inside the replicas' kernels, with bits that depend on their number.
        if not self.bit_identical:
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
        return is_staging_above(trace_below_tapes(tracer._trace), self.base_trace) is not None

    def _is_component(self, tracer: Any) -> bool:
        return isinstance(tracer, CaptureTracer) and isinstance(tracer.source, Captured)

    def all_components(self, components: Sequence[Any]) -> list[Any]:
        """All-gathers an array: returns all replicas' values, given those of this device's replicas."""
        parts = [jnp.asarray(component) for component in self._components(components)]
        # The operations of `sent` would change the kernels of bit-identical programs, whose tapes need none of them.
        stacked = stack_isolated([parts])[0] if self.bit_identical else jnp.stack(self.group_info.sent(parts))
        if len(self.device_assignment.devices) > 1:
            stacked = self.device_assignment.slots.rows(lax.all_gather(stacked, AXIS, axis=0, tiled=True))
        return [stacked[i] for i in range(self.device_assignment.num_replicas)]


def _is_inexact_tracer(value: object) -> bool:
    return isinstance(value, Tracer) and bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _are_equal_constants(components: Sequence[Any]) -> bool:
    """Returns whether the components are equal Python numbers, strings or bytes of one type; -0.0 is not 0.0.

    `numpy.float64` derives from float, but is an array of its replica, as other NumPy scalars are.
    """
    first = components[0]
    if any(type(one) is not type(first) for one in components):
        return False
    if isinstance(first, (float, complex)):
        return not has_attribute(first, "dtype") and all(repr(one) == repr(first) for one in components)
    return isinstance(first, (bool, int, str, bytes)) and all(one == first for one in components)


def origin_of(constant: object) -> Origin:
    """Returns a captured constant's `Origin`: its name for errors, and whether it can differ between replicas."""
    source = constant.source if isinstance(constant, CaptureTracer) else None
    if isinstance(source, Captured):
        varies = source.variable.per_replica
        label = f"{'sync-on-read ' if varies else ''}variable {source.variable.name!r}"
        # `separates_reads` gives each local replica a tracer of its own for the same value.
        local = source.local if varies else None
        return Origin(label, varies=varies, identity=("variable", id(source.variable), local))
    if isinstance(source, ReplicatedArgument):
        return Origin("a value from outside run", varies=False, identity=("value", id(source.value)))
    if isinstance(constant, Tracer):
        return Origin("a value from outside run", varies=False)
    return Origin.constant(constant)
