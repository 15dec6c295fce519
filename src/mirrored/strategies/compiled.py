"""Compiled `Strategy.run`: traces a function for all replicas into one SPMD program with one `shard_map`.

1. The function is traced once per *local* replica into a body jaxpr. Without virtual replicas, that is once.
2. Values that it reads from outside become constants of the body, and then operands of the program.
3. The replication check verifies that values assigned to mirrored variables are replicated, or raises an error.
4. The body is bound with `shard_map(check_vma=False)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from mirrored._jax import arrays
from mirrored._jax.inlining import Staged as Body
from mirrored._jax.inlining import stage
from mirrored._jax.jaxprs import equations_in
from mirrored._jax.local_collectives import PLACEHOLDERS
from mirrored._jax.placement import unplaced
from mirrored._jax.traces import CaptureTracer, belongs_to, current_trace
from mirrored._jax.trees import Structure
from mirrored.analysis.loss_scale_check import check_loss_scale
from mirrored.analysis.loss_scaling import LossScaling
from mirrored.analysis.replication_check import Origin, ReplicationCheck, check_replication
from mirrored.collectives.summation import stack_isolated, unstack_isolated
from mirrored.errors import ArgumentError, StructureError
from mirrored.runtime.ambient import ambient, announce_read, within
from mirrored.runtime.component_reads import announced_components
from mirrored.runtime.staged_values import Captured
from mirrored.runtime.staged_values import StagedAssignment as Assigned
from mirrored.runtime.variable_store import FunctionStore, created_in_function, is_under_tape
from mirrored.strategies import fixed_order_runs
from mirrored.strategies.checks import (
    OutSpecs,
    as_array,
    merged_differently,
    not_replicated,
    refuse_other_meshes,
    warn_of_assignment_in_turn,
    would_differ,
)
from mirrored.strategies.fusing import fuse
from mirrored.strategies.padding import contain
from mirrored.strategies.tracing_runner import TracingRunner, as_passed, origin_of
from mirrored.topology.device_assignment import AXIS
from mirrored.values import structures
from mirrored.values.distributed_values import PerReplica

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy

_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def run_compiled(
    strategy: Strategy, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], specs: OutSpecs
) -> Any:
    """Adds one call of `Strategy.run` to the compiled function that is being traced, and returns the call's result."""
    return _Run(strategy, specs).result(fn, args, kwargs)


@dataclasses.dataclass
class _Output:
    """One leaf of the result of `run`: a static object, or the index of its first component among the traced outputs.

    Attributes:
        shared: The object, if all replicas return the same one.
        start: The position of the first component among the body's outputs; None for a shared object.
        replicated: Whether the result is one array: `out_specs` declares the components equal, or they are one object
            that `merge_call` has returned to all replicas.
        declared: Whether `out_specs` declares it.
    """

    shared: Any = None
    start: int | None = None
    replicated: bool = False
    declared: bool = False


class _Run:
    def __init__(self, strategy: Strategy, specs: OutSpecs) -> None:
        self._specs = specs
        self._runner = TracingRunner(strategy)
        self._device_assignment = self._runner.device_assignment
        self._local = self._runner.num_local
        self._inputs: list[tuple[str, Any]] = []
        self._outputs: list[_Output] = []
        self._is_repeated = False
        self._out_treedef: Structure
        self._assigned: list[Assigned] = []
        here = ambient()
        assert here.store is not None
        self._outer_store = here.store
        self._outermost = here.store.outermost()
        self._runner.store.outer = here.store
        self._runner.store.under_tape = is_under_tape(here) or self._outermost.under_tape
        self._as_written = self._runner.as_written
        self._fixed_order = self._as_written and self._runner.store.under_tape
        self._runner.store.separates_reads = self._fixed_order

    def result(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, treedef = structures.flatten((tuple(args), kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, PerReplica)]
        self._inputs = [
            (f"the per-replica argument {i} of run", leaves[i].stacked(self._device_assignment)) for i in places
        ]
        if self._as_written:
            # The ids are an input. Ids that the program computes would be constants if there is one device, for which
            # XLA would compile the operations on them in another way.
            ids = jnp.arange(self._device_assignment.num_replicas)
            self._inputs.append(("the replica id", self._device_assignment.slots.stacked(ids)))
        shapes = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for _, x in self._inputs for _ in range(self._local)]

        def flat_body(*parts: Any) -> list[Any]:
            return self._trace(fn, leaves, treedef, places, parts)

        with within(listeners=(self._runner.store,)):
            axes = [(AXIS, len(self._device_assignment.devices))]
            body = stage(flat_body, shapes, axes=axes)
            equations = equations_in(body.jaxpr)
            refuse_other_meshes(equations)
            if self._runner.group_info.padded:
                body = contain(body, self._runner, shapes, axes)
            if not PLACEHOLDERS.isdisjoint(eqn.primitive.name for eqn, *_ in equations):
                body = fuse(body, self._runner, axes)
        # Replica 0 may create state that the others find. So the second trace, not the first one, checks what merges
        # enclose and read, the loss scale, assignments and declared results.
        self._is_repeated = created_in_function(self._outer_store).repeats_trace
        self._outermost.rereads |= self._runner.store.rereads
        self._outer_store.differentiated -= self._runner.store.staged.keys()
        self._outer_store.differentiated |= self._runner.store.differentiated
        if self._outer_store.aggregates:
            self._refuse_components(body)
        analysis = self._analysis(body)
        body = self._without_gradients(self._without_enclosed(body, analysis), analysis)
        if self._fixed_order:
            body = fixed_order_runs.with_fixed_order(body, self._runner, shapes, axes)
            analysis = self._analysis(body)
        self._check_replicated(body, analysis)
        return self._bind(body)

    def _refuse_components(self, body: Body) -> None:
        """Raises an error if an exported program's replicas use a variable that has per-replica components."""
        sources = [one.source for one in body.constants if isinstance(one, CaptureTracer)]
        used = [one.variable for one in (*sources, *self._assigned) if isinstance(one, (Captured, Assigned))]
        components = [variable for variable in used if variable.per_replica]
        if components:
            raise ArgumentError(
                "Strategy.run",
                found=f"an exported function reads or assigns sync-on-read variable {components[0].name!r} on replicas",
                rule="after loading, a sync-on-read variable has one value, the aggregate, and no components",
                remedy="export a function that does not call run, and reads the variable there",
            )

    def _without_enclosed(self, body: Body, analysis: ReplicationCheck) -> Body:
        """Checks that values used by a `merge_call` are equal on all replicas; drops the values from the outputs."""
        enclosed, joined = list(zip(*self._runner.enclosed, strict=True)), self._runner.store.joined
        last = len(body.jaxpr.outvars)
        first = last - self._local * (len(enclosed) + len(joined))
        groups = iter([body.jaxpr.outvars[i : i + self._local] for i in range(first, last, self._local)])
        for replicas, atoms in zip(enclosed, groups, strict=False):
            if not self._is_repeated and not analysis.same(atoms):
                called, name, _ = replicas[0]
                raise merged_differently(called, name, analysis.explain(atoms))
        for read, atoms in zip(joined, groups, strict=True):
            if not self._is_repeated and not analysis.same(atoms):
                raise would_differ(read.variable, read.where, _how(analysis, atoms))
        return body if first == last else body.giving(range(first))

    def _without_gradients(self, body: Body, analysis: ReplicationCheck) -> Body:
        """Warns if an optimizer sums gradients of a wrongly scaled loss; drops the gradients from the outputs.

        Tracing appends the gradients that optimizers sum to the outputs, so that the loss scaling analysis finds them.
        """
        count = len(body.jaxpr.outvars) - sum(len(row) for summed in self._runner.summed for row in summed.rows)
        if count == len(body.jaxpr.outvars):
            return body
        labels = len(body.constants)
        arguments = len(body.jaxpr.constvars) + len(body.jaxpr.invars) - labels
        owners = [None] * labels + [i % self._local for i in range(arguments)]
        scale = LossScaling(body.jaxpr, owners, body.constants, self._device_assignment.num_replicas, AXIS)
        gradients = iter(body.jaxpr.outvars[count:])
        for summed in () if self._is_repeated else self._runner.summed:
            rows = [[next(gradients) for _ in row] for row in summed.rows]
            check_loss_scale(summed._replace(rows=rows), scale, analysis, self._device_assignment.num_replicas)
        return body.giving(range(count))

    def _trace(
        self,
        fn: Callable[..., Any],
        leaves: Sequence[Any],
        treedef: Structure,
        places: Sequence[int],
        parts: Sequence[Any],
    ) -> list[Any]:
        runner = self._runner
        runner.base_trace = runner.store.base_trace = current_trace()
        runner.replica_ids = parts[-self._local :] if self._as_written else None
        own = list(leaves)
        for i, place in enumerate(places):
            own[place] = runner.group(parts[i * self._local : (i + 1) * self._local])
        args, kwargs = treedef.unflatten(own)
        results = [structures.map_leaves(as_passed, result) for result in runner.trace_replicas(fn, args, kwargs)]
        columns, self._out_treedef = structures.transpose(results, "Strategy.run")
        flat: list[Any] = []
        for column, replicated in zip(columns, self._specs.replicated(results[0]), strict=True):
            self._outputs.append(self._place(column, flat, replicated))
        for entry in runner.store.staged.values():
            self._assigned.append(entry)
            flat.extend([runner.store.local(entry.variable, k) for k in range(self._local)])
        flat.extend(gradient for summed in runner.summed for row in summed.rows for gradient in row)
        flat.extend(array for replicas in zip(*runner.enclosed, strict=True) for _, _, array in replicas)
        flat.extend(component for read in runner.store.joined for component in read.locals)
        return [arrays.as_array(leaf) for leaf in flat]

    def _place(self, column: Sequence[Any], flat: list[Any], replicated: bool) -> _Output:
        if self._runner.is_shared(column) and not any(belongs_to(leaf, self._runner.base_trace) for leaf in column):
            return _Output(shared=as_array(column[0]) if replicated else column[0])
        if not all(isinstance(leaf, _NUMBERS) and not arrays.has_host_dtype(leaf) for leaf in column):
            raise StructureError(
                "Strategy.run",
                found=f"the replicas returned {', '.join(type(leaf).__name__ for leaf in column)} for the same leaf",
                rule="inside a compiled function, replicas must return arrays, or all of them the same object",
                remedy="return arrays of one shape on every replica, or run eagerly",
            )
        start = len(flat)
        flat.extend(column)
        return _Output(start=start, replicated=replicated or self._is_one_object(column), declared=replicated)

    def _is_one_object(self, column: Sequence[Any]) -> bool:
        """Returns whether all replicas return the same object, which they have received from a `merge_call`.

        As in TensorFlow, this object is the result, not a per-replica value of it. A tracer that a variable has as its
        new value may also come from a read, of which each replica has a component of its own.
        """
        if not self._runner.is_merged(column):
            return False
        store = self._runner.store
        return not any(store.local(entry.variable, 0) is column[0] for entry in store.staged.values())

    # Replication check

    def _analysis(self, body: Body) -> ReplicationCheck:
        """Analyses which values of a traced body are replicated; the analysis stays valid if outputs are removed."""
        origins = [origin_of(constant) for constant in body.constants]
        origins += [Origin(label, varies=True) for label, _ in self._inputs for _ in range(self._local)]
        return check_replication(body.jaxpr, origins, axis=AXIS if len(self._device_assignment.devices) > 1 else None)

    def _check_replicated(self, body: Body, analysis: ReplicationCheck) -> None:
        outvars = body.jaxpr.outvars
        first = len(outvars) - self._local * len(self._assigned)
        mirrored = [
            (entry, outvars[first + i * self._local : first + (i + 1) * self._local])
            for i, entry in enumerate(self._assigned)
            if not entry.variable.per_replica and not self._is_repeated
        ]
        analysis.check_collectives()
        for entry, atoms in mirrored:
            if not analysis.same(atoms):
                raise would_differ(entry.variable, entry.where, _how(analysis, atoms))
            if entry.variable.device_assignment is None and entry.whole is None and self._reads(body, entry.variable):
                warn_of_assignment_in_turn(entry.variable, entry.where, self._device_assignment.num_replicas)
        for place, output in enumerate(self._outputs):
            if output.start is None or not output.replicated or (output.declared and self._is_repeated):
                continue
            atoms = outvars[output.start : output.start + self._local]
            if not analysis.same(atoms):
                if not output.declared:
                    output.replicated = False
                    continue
                path = analysis.explain(atoms)
                raise not_replicated(
                    structures.label_of(self._out_treedef, place), f"How the replicas' values diverge:\n{path}\n"
                )

    @staticmethod
    def _reads(body: Body, variable: Any) -> bool:
        if variable.internal or variable.counts_replicas:
            return False
        sources = [constant.source for constant in body.constants if isinstance(constant, CaptureTracer)]
        return any(isinstance(source, Captured) and source.variable is variable for source in sources)

    # Binding

    def _bind(self, body: Body) -> Any:
        operands, sources = self._operands(body)
        operands += [stacked for _, stacked in self._inputs]
        sharded, equal = PartitionSpec(AXIS), PartitionSpec()
        mesh = self._device_assignment.mesh
        in_rows = [not one.per_replica and self._in_rows(value) for one, value in zip(sources, operands, strict=False)]
        operands[: len(in_rows)] = [
            fixed_order_runs.one_row_each(mesh, value) if is_row else value
            for is_row, value in zip(in_rows, operands, strict=False)
        ]
        in_specs = [
            sharded if source.per_replica or is_row else equal for source, is_row in zip(sources, in_rows, strict=True)
        ] + [sharded] * len(self._inputs)
        out_rows: list[bool] = []

        def on_device(*parts: Any) -> tuple[list[Any], list[Any], list[Any]]:
            stacks = [part for part, source in zip(parts, sources, strict=False) if source.per_replica]
            rows = iter(self._unstack([*stacks, *parts[len(sources) :]]))
            captured = [
                next(rows) if source.per_replica else part[0] if is_row else part
                for part, source, is_row in zip(parts, sources, in_rows, strict=False)
            ]
            constants = [source.local_value(captured) for source in self._constant_sources]
            inputs = [component for components in rows for component in components]
            stacked, mirrored = self._sorted(body(constants, inputs))
            out_rows[:] = [self._in_rows(value) for value in mirrored]
            own = [value[None] for value, is_row in zip(mirrored, out_rows, strict=True) if is_row]
            return stacked, own, [value for value, is_row in zip(mirrored, out_rows, strict=True) if not is_row]

        bound = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=tuple(in_specs),
            out_specs=(sharded, sharded, equal),
            check_vma=False,
        )
        stacked, rows, equal_results = map(iter, bound(*operands))
        mirrored = [
            unplaced(fixed_order_runs.first_row(mesh, next(rows)) if is_row else next(equal_results))
            for is_row in out_rows
        ]
        return self._finish(list(stacked), mirrored)

    def _in_rows(self, value: object) -> bool:
        """Returns whether a replicated value enters and leaves `run` as an array ``[devices, ...]`` with equal rows."""
        return self._fixed_order and fixed_order_runs.has_gradient(value)

    def _operands(self, body: Body) -> tuple[list[Any], list[_Source]]:
        """Returns one operand per variable or outer value that the traced body captures, and the kind of each.

        A per-replica variable can have several constants in the body, one per local replica, but is one operand.
        """
        operands: list[Any] = []
        sources: list[_Source] = []
        places: dict[int, int] = {}
        read: dict[int, Any] = {}
        self._constant_sources: list[_Component] = []
        for constant in body.constants:
            captured = constant.source if isinstance(constant, CaptureTracer) else None
            variable = captured.variable if isinstance(captured, Captured) else None
            key = id(constant) if variable is None else id(variable)
            if key not in places:
                places[key] = len(operands)
                sources.append(_Source(variable is not None and variable.per_replica))
                operands.append(constant)
                if variable is not None:
                    read[places[key]] = variable
            local = captured.local if isinstance(captured, Captured) else None
            self._constant_sources.append(_Component(places[key], local))
        wholes = [self._outer_store.whole(variable) for variable in read.values()]
        for (place, variable), whole in zip(read.items(), wholes, strict=True):
            operands[place] = self._announced(variable, whole)
        return operands, sources

    def _announced(self, variable: Any, whole: Any) -> Any:
        if variable.per_replica and is_under_tape(ambient()):
            return (fixed_order_runs.announced_components if self._fixed_order else announced_components)(
                variable, whole
            )
        return announce_read(variable, whole)

    def _sorted(self, outs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Splits the traced body's flat outputs into stacked per-replica values and replicated values."""
        local = self._local
        columns: list[Sequence[Any]] = []
        mirrored: list[Any] = []
        for place in self._outputs:
            if place.start is not None and place.replicated:
                mirrored.append(outs[place.start])
            elif place.start is not None:
                columns.append(outs[place.start : place.start + local])
        first = len(outs) - local * len(self._assigned)
        for i, entry in enumerate(self._assigned):
            components = outs[first + i * local : first + (i + 1) * local]
            if entry.variable.per_replica:
                columns.append(components)
            else:
                mirrored.append(components[0])
        return self._stack(columns), mirrored

    # If results must be bit-identical, the components are behind a fusion boundary where the body receives and returns
    # them. Otherwise XLA would fuse slices and stacks with the computations of the components, and their bits would
    # depend on the number of local replicas.

    def _unstack(self, arrays: Sequence[jax.Array]) -> list[list[Any]]:
        """Splits arrays ``[local, ...]`` into components per replica slot; an empty slot repeats the previous slot."""
        group = self._runner.group_info
        if group.padded:
            arrays = [group.slots.repeated(array, group.is_real()) for array in arrays]
        if self._fixed_order:
            return fixed_order_runs.unstack_unfused(arrays)
        if self._as_written:
            return unstack_isolated(arrays)
        return [[array[k] for k in range(self._local)] for array in arrays]

    def _stack(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Stacks each value's components, one per local replica, into an array ``[local, ...]``."""
        if self._as_written:
            return stack_isolated(columns)
        return [jnp.stack(components) for components in columns]

    def _finish(self, stacked: list[Any], mirrored: list[Any]) -> Any:
        parts, wholes = iter(stacked), iter(mirrored)
        leaves = [
            place.shared
            if place.start is None
            else next(wholes)
            if place.replicated
            else PerReplica.from_stacked(next(parts), self._device_assignment)
            for place in self._outputs
        ]
        if isinstance(self._outermost, FunctionStore):
            self._outermost.as_written |= self._runner.as_written
            self._outermost.device_assignment = self._device_assignment
        for entry in self._assigned:
            value = next(parts) if entry.variable.per_replica else next(wholes)
            self._outer_store.set_whole(entry.variable, value, entry.where[0])
        return self._out_treedef.unflatten(leaves)


@dataclasses.dataclass(frozen=True)
class _Source:
    per_replica: bool


@dataclasses.dataclass(frozen=True)
class _Component:
    place: int
    local: int | None

    def local_value(self, parts: Sequence[Any]) -> Any:
        """Returns one replica's value of a captured constant, given the program's operands on the replica's device."""
        return parts[self.place] if self.local is None else parts[self.place][self.local]


def _how(analysis: ReplicationCheck, atoms: Sequence[Any]) -> str:
    return f". How the replicas' values diverge:\n{analysis.explain(atoms)}\n"
