"""The runner of an eager `run`: calls a Python function once for each replica in turn, on the replica's device.

`print`, `pdb`, Python branches, and shapes that differ between replicas all work in an eager run. The replicas run in
threads, one at a time (`runtime.lockstep`). Their assignments to variables are collected in an `EagerReplicaStore`, and
stored by `EagerRunner.commit` after all replicas have returned: a run that fails changes no variable of the strategy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import caches
from mirrored._jax.boxes import Array, has_payload, payload_of
from mirrored._jax.placement import movable, put_on
from mirrored._jax.traces import Tracer, current_trace, is_staging_above, trace_below_tapes
from mirrored._typing import Operand
from mirrored.collectives.host_allgather import check_equal, host_allgather
from mirrored.collectives.reduce_op import log_label
from mirrored.collectives.stacked import concatenated, on_all_devices, reduce_stacked
from mirrored.collectives.summation import Group
from mirrored.runtime.ambient import ambient, is_tracked, within
from mirrored.runtime.component_reads import component_of
from mirrored.runtime.lockstep import LockStep, carry
from mirrored.runtime.merge import Merge, is_outside, under_transform_error
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.runtime.staged_values import StagedAssignment
from mirrored.runtime.variable_store import ReplicaStore
from mirrored.strategies.checks import refuse_differentiated
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.copies import Copies
from mirrored.strategies.declared_results import OutSpecs, as_array, checked_components
from mirrored.strategies.eager_equality import bits_of, check_equal_bits, is_number, one_type, shared_by_workers
from mirrored.strategies.recorded_collectives import all_reduce_recorded, gather_recorded, refuse_recorded
from mirrored.strategies.reducing import gather_across
from mirrored.values import structures
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.values.stacking import stack_components
from mirrored.variables.state_lock import assign_all_stored, excuse
from mirrored.variables.storage import MADE_ALONE, distinct_names, donatable, placed, uncommitted

if TYPE_CHECKING:
    from mirrored.collectives.reduce_op import ReduceOp
    from mirrored.strategies.strategy import Strategy

_DATA: Final = (bool, int, float, complex, jax.Array, np.ndarray, np.generic)

# Provenance in eager runs: a leaf of the result is one plain value if all replicas return the same Python object, else
# a `PerReplica`. The arguments of `merge_call` are combined by the same rule. Three tables contain the exceptions.
# - `_copies`: a replica gets a copy of an array that is given to all replicas (an argument of `run`, a result of
#   `merge_call`) if a tape tracks the array, or if it is committed to several devices or to another one. If all
#   replicas return copies of one original, the leaf is the original. If a tape in the replica records the
#   `merge_call`, the replica gets a box of its own, which is in no table: the leaf is a `PerReplica`. (An original
#   that is committed to the device of one replica is passed to that replica as it is. Then not all replicas return
#   copies, and the leaf is a `PerReplica`.)
# - `_separated`: arrays that count as each replica's own (results of an all-reduce, components of variables), although
#   virtual replicas of a device hold one object. The leaf is a `PerReplica`, as on several devices.
# - `_outer`, with several processes: the data that all replicas were given (arguments of `run`, results of
#   `merge_call`, values of plain variables). One process cannot compare objects with the others, and a process with one
#   replica compares nothing. So all other arrays and numbers give a `PerReplica`, also one that the replica function
#   closes over. Equal numbers can be one object, so processes exchange those in this table (`eager_equality.py`).

# Replica threads take no assignment lock, because the thread that called `run` holds it and waits for them.
carry(lambda: excuse)


class EagerReplicaStore(ReplicaStore):
    """The variable store of one eager `run`: holds values that replicas assign, on the replicas' devices."""

    captures = False

    def __init__(self, runner: EagerRunner) -> None:
        super().__init__(runner.num_local)
        self._runner: EagerRunner = weakref.proxy(runner)  # no cycle: freed with the run

    def before(self, variable: Any, replica: int) -> Any:
        if variable.device_assignment is None:
            return self._runner.component(variable.stored(), replica)
        return self._runner.separate(variable.stored_component(replica))

    def whole_before(self, variable: Any) -> Any:
        return variable.stored()

    def join(self, variable: Any, components: Sequence[Any], where: Sequence[str]) -> Any:
        components = [payload_of(component) for component in components]
        if variable.per_replica:
            return stack_components(components, self._runner.device_assignment)
        if not structures.identical(components):
            check_equal_bits(variable, components, where)
        return self._runner.whole(components)

    def split(self, value: object, replica: int) -> Any:
        return self._runner.reduced_component(value, replica)


class EagerRunner(ReplicaRunner):
    """Executes an eager `run`: the replicas of this process take turns, from collective to collective.

    With several processes, each process runs its own replicas. A merge is then a compiled collective, which all
    processes must issue in the same order.

    Attributes:
        has_outer_numbers: Whether replicas of any process can have Python numbers from outside; False with one process.
    """

    store: EagerReplicaStore

    def __init__(self, strategy: Strategy) -> None:
        assert strategy.device_assignment is not None
        self.strategy = strategy
        self.device_assignment = strategy.device_assignment
        self.num_local = len(self.device_assignment.addressable_replicas)
        self.stands_for_others = self.in_place = False
        self.base_trace = self.run_trace = current_trace()
        self.created: dict[tuple[str, int], Any] = {}
        self.creations: dict[tuple[int, str], int] = {}
        self.outer_listeners = ambient().listeners
        self.store = EagerReplicaStore(self)
        self._lockstep = LockStep("Strategy.run")
        self._copies = Copies()
        self._separated = weakref.WeakValueDictionary[int, Any]()  # not the tracers of a merge after their trace
        self._outer: dict[int, Any] = {}
        self._spans = self.device_assignment.spans_processes
        self.has_outer_numbers = self._uneven = False

    def run_replicas(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], specs: OutSpecs | None = None
    ) -> Any:
        """Calls ``fn`` once per replica of this process, synchronised at collectives, and combines the results."""

        def body(replica: int) -> Callable[[], Any]:
            def call() -> Any:
                own = structures.map_leaves(lambda leaf: self.component(leaf, replica), (tuple(args), kwargs))
                with jax.default_device(self._device_of(replica)), caches.for_replica(self.trace_key(replica)):
                    return fn(*own[0], **own[1])

            return call

        replicas = range(self.num_local)
        outer = self._lockstep, self._uneven, self.run_trace
        self._lockstep = LockStep("Strategy.run")
        self.run_trace = current_trace()
        self._uneven = any(_is_uneven(leaf) for leaf in structures.flatten((tuple(args), kwargs))[0])
        try:
            with within(store=self.current_store(), runner=self, replica=None) as here:
                ids = self.device_assignment.addressable_replicas
                contexts = [here.fork(replica=ReplicaContext(self.strategy, ids[local], local)) for local in replicas]
                results = self._lockstep.run([body(replica) for replica in replicas], contexts)
            # A run in a merge may return tracers: those of a replica's tape, which records the merge as one operation.
            if ambient().runner is None and len(self.device_assignment.devices) > 1:
                refuse_differentiated(results)
                if self._spans:
                    refuse_recorded(results)
            if specs is not None and specs.is_given:
                return self._declared(results, specs)
            return structures.regroup(results, "Strategy.run", self.group, are_shared=self.are_shared)
        finally:
            self._lockstep, self._uneven, self.run_trace = outer

    def _declared(self, results: Sequence[Any], specs: OutSpecs) -> Any:
        """Combines the replicas' results as `out_specs` declares: each replicated leaf becomes one array."""
        columns, treedef = structures.transpose(results, "Strategy.run")
        replicated = list(specs.replicated(results[0]))
        self._check_replicated(
            {
                structures.label_of(treedef, place): components
                for place, (components, equal) in enumerate(zip(columns, replicated, strict=True))
                if equal
            }
        )
        leaves: list[Any] = []
        for components, equal, is_shared in zip(columns, replicated, self.are_shared(columns), strict=True):
            if is_shared:
                leaves.append(as_array(components[0]) if equal else components[0])
            else:
                leaves.append(self._replicated(components) if equal else self.group(components))
        return treedef.unflatten(leaves)

    def _check_replicated(self, leaves: Mapping[str, Sequence[Any]]) -> None:
        """Raises an error if the replicas' values of a leaf differ although `out_specs` declares it replicated."""
        values: dict[str, Any] = {}
        for label, components in leaves.items():
            payloads = [payload_of(component) for component in components]
            if not structures.identical(components):
                checked_components(payloads, lambda value: bits_of(value), label)
            if isinstance(payloads[0], _DATA) and not isinstance(payloads[0], Tracer):
                values[label] = payloads[0]
        if self._spans:
            rule = "a result declared by PartitionSpec() in out_specs must be equal on all replicas of all workers"
            remedy = "reduce the gradients over replicas before they are used"
            check_equal("Strategy.run", values, rule=rule, remedy=remedy)

    def _replicated(self, components: Sequence[Any]) -> Any:
        first = payload_of(components[0])
        if not isinstance(first, _DATA) or isinstance(first, (bool, int, float, complex)):
            return as_array(components[0])
        if _is_recorded(components[0]):
            return components[0] if self._spans else on_all_devices(components[0], self.device_assignment)
        return self.whole([jnp.asarray(payload_of(component)) for component in components])

    def commit(self) -> None:
        """Stores all values that the replicas have assigned; an exception leaves either all or none of them stored."""
        entries = list(self.store.staged.values())
        for entry in entries:
            entry.variable.before_write()
        wholes = [self.store.whole(entry.variable) for entry in entries]
        if self._spans:
            self._check_workers(entries)
        values = [self._stored(entry.variable, whole) for entry, whole in zip(entries, wholes, strict=True)]
        for entry in entries:
            entry.variable.mark_shared()  # user code may hold the new values: a donating step must copy them
        assign_all_stored([entry.variable for entry in entries], values)

    def _stored(self, variable: Any, whole: Operand) -> Any:
        """Returns a variable's value for all replicas, with the sharding in which the variable stores it."""
        if variable.device_assignment is None:
            return uncommitted(whole)
        if variable.per_replica:
            return jax.device_put(whole, self.device_assignment.sharded)
        return placed(donatable(whole), self.device_assignment, per_replica=False)  # the program may donate its own

    # ReplicaRunner

    def trace_key(self, local: int) -> Hashable:
        return self.device_assignment.num_replicas, self.device_assignment.addressable_replicas[local]

    def run_merge(self, merge: Merge, payload: list[Any]) -> Any:
        base = trace_below_tapes(self.base_trace)
        if is_staging_above(trace_below_tapes(current_trace()), base) and not is_outside(self):
            # an assignment in `tf.recompute_grad`, whose trace is that of one replica
            raise under_transform_error(merge)
        try:
            return self._lockstep.run_merge(merge, payload)
        finally:
            caches.resume_replica(self.trace_key(ambient().replica.local_index))

    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        if self._spans and not _has_recorded(arrays):
            # Workers compare operations and shapes first: a mismatched collective would deadlock.
            described = ", ".join(_described(components[0]) for components in arrays)
            host_allgather("Strategy.run", f"reduce {log_label(op)} of {described} (in an eager run)")
        return self._reduce_compared(op, arrays)

    def _reduce_compared(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        algorithm = self.strategy.cross_device_ops
        if _has_recorded(arrays):
            if self._spans:
                return [parts[0] for parts in self._reduce_eager(op, arrays)]
            # A tape outside `run` records the reduction as ordinary operations, so it runs on one device.
            near = [[self._near(component) for component in components] for components in arrays]
            reduced = algorithm.reduce_arrays(op, near, Group(axis=None, devices=1, local=self.num_local))
            return [on_all_devices(whole, self.device_assignment) for whole in reduced]
        stacked = [stack_components(components, self.device_assignment) for components in arrays]
        return reduce_stacked(algorithm, op, stacked, self.device_assignment)

    def all_reduce_given(self, op: ReduceOp, columns: Sequence[Sequence[Any] | None]) -> list[list[Any] | None]:
        if not self._spans:
            return super().all_reduce_given(op, columns)
        # Another worker may have what all replicas of this one lack, so the workers exchange what they have.
        question = f"all-reduce {log_label(op)} of {len(columns)} arrays (in an eager run)"
        own = [None if column is None else [str(column[0].dtype), list(column[0].shape)] for column in columns]
        is_recorded = _has_recorded([column for column in columns if column is not None])
        everyone = host_allgather("Strategy.run", question, [own, is_recorded])
        kinds_of_all = zip(*(kinds for kinds, _ in everyone), strict=True)
        types = [one_type(place, kinds) for place, kinds in enumerate(kinds_of_all)]
        # A reduction that the tape of any worker records compares the calls again (`_reduce_eager`): all must do so.
        reduce = self.reduce if any(recorded for _, recorded in everyone) else self._reduce_compared
        arrays = [
            [jnp.zeros(kind[1], kind[0])] * self.num_local if column is None else column
            for column, kind in zip(columns, types, strict=True)
            if kind is not None
        ]
        results = iter(self._all_reduce(op, arrays, reduce) if arrays else [])
        return [None if kind is None else next(results) for kind in types]

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self._all_reduce(op, arrays, self.reduce)

    def _all_reduce(
        self, op: ReduceOp, arrays: Sequence[Sequence[Any]], reduce: Callable[..., list[Any]]
    ) -> list[list[Any]]:
        if not _has_recorded(arrays):
            results = [[whole] * self.num_local for whole in reduce(op, arrays)]
        elif self._spans:
            results = all_reduce_recorded(self._reduce_eager, op, arrays, self.device_assignment)
        else:
            near = [[self._near(component) for component in components] for components in arrays]
            results = self.strategy.cross_device_ops.all_reduce(op, near, Group(None, devices=1, local=self.num_local))
        return [[self.reduced_component(part, k) for k, part in enumerate(parts)] for parts in results]

    def _reduce_eager(self, op: ReduceOp, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """All-reduces arrays of all workers; returns each result on every local replica's device."""
        if _has_recorded(arrays):  # another tape or transform differentiates what the first one computes
            return all_reduce_recorded(self._reduce_eager, op, arrays, self.device_assignment)
        wholes = self.reduce(op, arrays)
        return [[_on_device(whole, self._device_of(k)) for k in range(self.num_local)] for whole in wholes]

    def are_equal(self, numbers: Sequence[Any]) -> bool:
        if not self._spans:
            return super().are_equal(numbers)
        parts = [[number.real, number.imag] for number in numbers]
        everyone = host_allgather("Strategy.run", "compare the numbers of all replicas (in an eager run)", parts)
        return all(theirs == everyone[0][0] for worker in everyone for theirs in worker)

    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        if not self._spans:
            wholes = [concatenated([self._near(one) for one in parts], axis) for parts in arrays]
            return [on_all_devices(whole, self.device_assignment) for whole in wholes]
        if _has_recorded(arrays):
            return [
                gather_recorded(self._reduce_eager, components, axis, self.device_assignment) for components in arrays
            ]
        return [gather_across(components, axis, self.device_assignment) for components in arrays]

    def group(self, components: Sequence[Any]) -> Any:
        wholes = [self._copies.original(component) for component in components]
        if wholes[0] is not None and structures.identical(wholes) and id(components[0]) not in self._separated:
            return wholes[0]
        value = PerReplica.of_components(self._movable(components), self.device_assignment)
        value.of_uneven_batch = self._uneven
        return value

    def _movable(self, components: Sequence[Any]) -> list[Any]:
        """Returns arrays that are committed to no device, for use outside the run; repeated arrays stay one object."""
        if len(self.device_assignment.devices) == 1:
            return list(components)
        # A copy of an array that a tape watches must be an operation that the tape records.
        watched = [type(one) is Array and is_tracked(one) for one in components]
        own = [jax.device_put(one, one.device) if is_ else one for one, is_ in zip(components, watched, strict=True)]
        found = {id(one): movable(copy) for one, copy in zip(components, own, strict=True)}
        return [found[id(component)] for component in components]

    def is_shared(self, components: Sequence[Any]) -> bool:
        if not structures.identical(components) or id(components[0]) in self._separated:
            return False
        # With several processes, data that was made in the run may differ between them.
        return not self._spans or not isinstance(components[0], _DATA) or id(components[0]) in self._outer

    def are_shared(self, columns: Sequence[Sequence[Any]]) -> list[bool]:
        shared = super().are_shared(columns)
        return shared_by_workers(columns, shared) if self.has_outer_numbers else shared

    def component(self, value: object, local: int) -> Any:
        if isinstance(value, PerReplica):
            component = component_of(value, local)
            # A row of a stacked array that a tape watches is not on the replica's device.
            is_row = value.is_stacked and is_tracked(value.first())
            return jax.device_put(component, self._device_of(local)) if is_row else component
        if isinstance(value, Mirrored):
            value = value.value
        if self._spans and isinstance(value, _DATA):
            self._outer[id(value)] = value
            self.has_outer_numbers = self.has_outer_numbers or is_number(value)
        if not isinstance(value, jax.Array) or len(self.device_assignment.devices) == 1:
            return value
        moved = self._moved(value, self._device_of(local))
        if moved is not value:
            self._copies.note(moved, value)
        return moved

    def components_each(self, value: object) -> list[Any]:
        self.has_outer_numbers = self._spans  # whatever the value is: it may be a number on some workers only
        each, whole = super().components_each(value), value.value if isinstance(value, Mirrored) else value
        is_assigned = isinstance(whole, jax.Array) and any(one.whole is whole for one in self.store.staged.values())
        # A variable's new value may also come from a read, of which each replica has a component of its own.
        return [self.separate(one) for one in each] if is_assigned else each

    def reduced_component(self, value: Operand, local: int) -> Any:
        device = self._device_of(local)
        return self.separate(self._moved(value, device) if _is_recorded(value) else _on_device(value, device))

    def separate(self, component: jax.Array) -> Any:
        """Marks an array as one replica's own value, not shared with the other replicas, and returns the array."""
        self._separated[id(component)] = component
        return component

    def _device_of(self, local: int) -> jax.Device:
        return self.device_assignment.device_of(self.device_assignment.addressable_replicas[local])

    def _check_workers(self, entries: Sequence[StagedAssignment]) -> None:
        """Raises an error if the new value of a mirrored variable differs between processes."""
        mirrored: list[Any] = [entry.variable for entry in entries if not entry.variable.per_replica]
        names, device = distinct_names(mirrored, alone=MADE_ALONE), self._device_of(0)
        check_equal(
            "Strategy.run",
            {f"mirrored variable {names[id(v)]!r}": _on_device(self.store.whole(v), device) for v in mirrored},
            rule="a mirrored variable must be equal on all replicas of all workers at all times",
            remedy="reduce the value first (get_replica_context().all_reduce), or create it with aggregation=",
        )

    def _near(self, component: jax.Array) -> Any:
        first, *others = self.device_assignment.devices
        return self._moved(component, first) if others else component

    def _moved(self, value: Any, device: jax.Device) -> Any:
        if _is_recorded(value):
            return put_on(value, device)
        if len(value.sharding.device_set) > 1 and value.is_fully_replicated:
            return _on_device(value, device)
        return value if not value.committed or value.device == device else jax.device_put(value, device)

    def whole(self, components: Sequence[Any]) -> Any:
        """Builds one replicated array from the equal arrays on the replicas' devices, without copying them."""
        devices = self.device_assignment.addressable_devices
        before = self.device_assignment.addressable_replicas[0]
        firsts = [components[self.device_assignment.replicas_on(device)[0] - before] for device in devices]
        placed = [jax.device_put(one, device) for one, device in zip(firsts, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(np.shape(firsts[0]), self.device_assignment.replicated, placed)


def _described(component: jax.Array) -> str:
    array = jnp.asarray(component)
    return f"{array.dtype}{list(array.shape)}"


def _on_device(value: jax.Array, device: jax.Device) -> jax.Array:
    """Returns the shard of an array on `device`; transfers an array that is on a single other device."""
    if len(value.sharding.device_set) == 1:
        return value.addressable_data(0) if value.device == device else jax.device_put(value, device)
    return next((shard.data for shard in value.addressable_shards if shard.device == device), value)


def _has_recorded(arrays: Sequence[Sequence[Any]]) -> bool:
    return any(_is_recorded(component) for components in arrays for component in components)


def _is_recorded(value: object) -> bool:
    """Returns whether a tape or transform records operations on a value. A tape knows what it watches by identity."""
    return isinstance(value, Tracer) or has_payload(value) or is_tracked(value)


def _is_uneven(leaf: object) -> bool:
    """Returns whether an argument of `run` consists of per-replica batches with different numbers of rows."""
    if not isinstance(leaf, PerReplica) or leaf.is_stacked or leaf.component_shape is not None:
        return False
    return len({(len(one),) if isinstance(one, (list, tuple)) else np.shape(one)[:1] for one in leaf.values}) > 1
