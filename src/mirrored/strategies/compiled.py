"""Compiled `Strategy.run`: traces a function for all replicas into one SPMD program with one `shard_map`.

1. The function is traced once per *local* replica into one body jaxpr. Without virtual replicas, that is once.
2. Values that it reads from outside become constants of the body, and then operands of the program.
3. The replication check proves that what must be equal on all replicas is equal, or raises an error: values assigned to
   mirrored variables, declared results, and what merges close over or read as one value.
4. The body is bound with `shard_map(check_vma=False)` (`strategies.shard_map_call`). Step 3 replaces JAX's check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import arrays
from mirrored._jax.boxes import payload_of
from mirrored._jax.hoisting import hoistable_arrays, with_hoisted
from mirrored._jax.inlining import Staged, stage
from mirrored._jax.jaxprs import equations_in
from mirrored._jax.local_collectives import PLACEHOLDERS
from mirrored._jax.traces import CaptureTracer, Tracer, belongs_to, current_trace
from mirrored._jax.trees import Structure
from mirrored.analysis.loss_scale_check import check_loss_scale
from mirrored.analysis.loss_scaling import LossScaling
from mirrored.analysis.replication_check import Origin, ReplicationCheck, check_replication
from mirrored.compilation.results import refuse_holder
from mirrored.compilation.signature import one_array_of
from mirrored.errors import ArgumentError, StructureError
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.staged_values import Captured, StagedAssignment
from mirrored.runtime.variable_store import FunctionStore, created_in_function, is_under_tape
from mirrored.strategies import fixed_order_runs
from mirrored.strategies.body_outputs import BodyOutputs
from mirrored.strategies.checks import (
    merged_differently_error,
    refuse_other_meshes,
    warn_of_assignment_per_replica,
    would_differ_error,
)
from mirrored.strategies.declared_results import OutSpecs, as_array, not_replicated_error
from mirrored.strategies.fusing import fuse
from mirrored.strategies.padding import contain
from mirrored.strategies.shard_map_call import Binding
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
class _ResultLeaf:
    """One leaf of the result of a compiled `run`: an array, or a static object that all replicas return.

    Attributes:
        static: The object; None for an array, whose components are a column of `BodyOutputs.results`.
        is_array: Whether the leaf is an array.
        is_replicated: Whether the result is one array: `out_specs` declares the components equal, or they are one
            object that `merge_call` has returned to all replicas.
        is_declared: Whether `out_specs` declares it.
    """

    static: object = None
    is_array: bool = False
    is_replicated: bool = False
    is_declared: bool = False


class _Run:
    """One call of `Strategy.run` that is being added to the compiled function around it.

    Attributes set while the body is traced: `_out_treedef` and `_leaves` (the result), `_assigned` (the assignments),
    `_outputs` (what the body returns for them and for the checks), `_enclosed` (what it returns for merges) and
    `_differs_eagerly`. They refer to no value of the trace, which has ended when they are used.
    """

    def __init__(self, strategy: Strategy, specs: OutSpecs) -> None:
        self._specs = specs
        self._runner = TracingRunner(strategy)
        self._device_assignment = self._runner.device_assignment
        self._local = self._runner.num_local
        self._inputs: list[tuple[str, Any]] = []
        self._is_repeated = False
        self._out_treedef: Structure
        self._leaves: list[_ResultLeaf] = []
        self._assigned: list[StagedAssignment] = []
        self._outputs: BodyOutputs
        self._enclosed: list[tuple[str, str]] = []
        self._differs_eagerly: list[bool] = []
        here = ambient()
        assert here.store is not None
        self._outer_store = here.store
        self._outermost = here.store.outermost()
        self._runner.store.outer = here.store
        self._runner.store.under_tape = is_under_tape(here) or self._outermost.under_tape
        self._bit_identical = self._runner.bit_identical
        # A tape around the run then sums the replicas' gradients in a fixed order, too.
        self._fixed_order = self._bit_identical and self._runner.store.under_tape
        self._runner.store.separates_reads = self._fixed_order

    def result(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, treedef = structures.flatten((tuple(args), kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, PerReplica)]
        given = [one_array_of(leaves[i], self._device_assignment, self._outer_store) for i in places]
        self._inputs = [(f"the per-replica argument {i} of run", x) for i, x in zip(places, given, strict=True)]
        if self._bit_identical:
            # The ids are an input. Ids that the program computes would be constants if there is one device, for which
            # XLA would compile the operations on them in another way.
            ids = jnp.arange(self._device_assignment.num_replicas)
            self._inputs.append(("the replica id", self._device_assignment.slots.stacked(ids)))
        shapes = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for _, x in self._inputs for _ in range(self._local)]
        axes = [(AXIS, len(self._device_assignment.devices))]

        def flat_body(*parts: Any) -> list[Any]:
            return self._trace(fn, leaves, treedef, places, parts)

        body = self._staged(flat_body, shapes, axes)
        # A trace that creates variables is discarded, and the function is traced again (`Function._traced`). In the
        # first trace, replica 0 may create state that the others find. So only the second one checks what merges
        # enclose and read, the loss scale, assignments and declared results.
        self._is_repeated = created_in_function(self._outer_store).repeats_trace
        self._outermost.rereads |= self._runner.store.rereads
        self._outer_store.differentiated -= self._runner.store.staged.keys()
        self._outer_store.differentiated |= self._runner.store.differentiated
        if self._outer_store.aggregates:
            self._refuse_components(body)
        analysis = self._analysis(body)
        if not self._is_repeated:
            self._check_merges(body, analysis)
            self._check_unchanged(body, analysis)
            self._check_loss_scale(body, analysis)
        outputs = self._outputs.of_program
        body = body.giving(range(len(outputs.flat())))
        if self._fixed_order or (self._bit_identical and fixed_order_runs.reads_outer_values(body, self._runner)):
            body = fixed_order_runs.with_fixed_order(body, self._runner, shapes, axes)
            analysis = self._analysis(body)
        self._check_replicated(body, outputs, analysis)
        are_per_replica = [not leaf.is_replicated for leaf in self._leaves if leaf.is_array]
        are_per_replica += [entry.variable.per_replica for entry in self._assigned]
        binding = Binding(self._runner, self._outer_store, fixed_order=self._fixed_order)
        return self._finish(binding.bind(body, [value for _, value in self._inputs], outputs, are_per_replica))

    def _staged(
        self, flat_body: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
    ) -> Staged:
        """Traces the replicas of one device, and rewrites the jaxpr if necessary.

        `with_hoisted` rewrites it if a JAX transform closes over an array that a tape watches, `contain` if some
        devices have an empty slot, and `fuse` if a JAX transform contains collectives.
        """
        with within(listeners=(self._runner.store,)):
            body = stage(flat_body, shapes, axes=axes)
            inside = hoistable_arrays(body)
            if watched := [array for array in inside if self._runner.may_be_watched(array)]:
                body = with_hoisted(body, watched, shapes, axes)
            self._outermost.embeds_arrays |= len(watched) < len(inside)
            equations = equations_in(body.jaxpr)
            refuse_other_meshes(equations)
            if self._bit_identical:
                body = fixed_order_runs.with_separate_values(body, self._runner, shapes, axes)
            if self._runner.group_info.padded:
                body = contain(body, self._runner, shapes, axes)
            if not PLACEHOLDERS.isdisjoint(eqn.primitive.name for eqn, *_ in equations):
                body = fuse(body, self._runner, axes)
        return body

    def _refuse_components(self, body: Staged) -> None:
        """Raises an error if an exported program reads or assigns a sync-on-read variable on replicas."""
        sources = [one.source for one in body.constants if isinstance(one, CaptureTracer)]
        used = [one.variable for one in (*sources, *self._assigned) if isinstance(one, (Captured, StagedAssignment))]
        components = [variable for variable in used if variable.per_replica]
        if components:
            raise ArgumentError(
                "Strategy.run",
                found=f"an exported function reads or assigns sync-on-read variable {components[0].name!r} on replicas",
                rule="after loading, a sync-on-read variable has one value, the aggregate, and no components",
                remedy="export a function that does not call run, and reads the variable there",
            )

    def _trace(
        self,
        fn: Callable[..., Any],
        leaves: Sequence[Any],
        treedef: Structure,
        places: Sequence[int],
        parts: Sequence[Any],
    ) -> list[Any]:
        runner = self._runner
        runner.base_trace = runner.run_trace = runner.store.base_trace = current_trace()
        inputs = [parts[i : i + self._local] for i in range(0, len(parts), self._local)]
        runner.replica_ids = inputs[-1] if self._bit_identical else None
        own = list(leaves)
        for place, components in zip(places, inputs, strict=False):  # the replica ids are the last input
            own[place] = runner.group(components)
        args, kwargs = treedef.unflatten(own)
        results = [structures.map_leaves(as_passed, result) for result in runner.trace_replicas(fn, args, kwargs)]
        columns, self._out_treedef = structures.transpose(results, "Strategy.run")
        declared = self._specs.replicated(results[0])
        self._leaves = [self._leaf(column, is_declared) for column, is_declared in zip(columns, declared, strict=True)]
        staged = list(runner.store.staged.values())
        enclosed = runner.enclosed()
        outputs = BodyOutputs(
            results=[column for column, leaf in zip(columns, self._leaves, strict=True) if leaf.is_array],
            assigned=[[runner.store.local(entry.variable, k) for k in range(self._local)] for entry in staged],
            gradients=[row for summed in runner.summed for row in summed.rows],
            enclosed=[[array for *_, array in replicas] for replicas in enclosed],
            joined=[read.locals for read in runner.store.joined],
            unchanged=[[value, own] for value, own, _ in runner.unchanged],
        )
        self._outputs = outputs.without_values
        self._assigned = [entry.without_values() for entry in staged]
        self._enclosed = [(called, name) for (called, name, _), *_ in enclosed]
        self._differs_eagerly = [self._is_assigned_per_replica_eagerly(entry) for entry in staged]
        runner.forget_values()
        return [arrays.as_array(leaf) for leaf in outputs.flat()]

    def _leaf(self, column: Sequence[Any], is_declared: bool) -> _ResultLeaf:
        """Returns how the run returns one pytree leaf: as a static object, replicated array or per-replica value."""
        for leaf in column:
            refuse_holder(leaf, "Strategy.run", lambda part: belongs_to(payload_of(part), self._runner.base_trace))
        if self._runner.is_shared(column) and not any(belongs_to(leaf, self._runner.base_trace) for leaf in column):
            return _ResultLeaf(static=as_array(column[0]) if is_declared else column[0])
        if not all(isinstance(leaf, _NUMBERS) and not arrays.has_host_dtype(leaf) for leaf in column):
            refuse_holder(column[0], "Strategy.run", lambda part: isinstance(part, Tracer))
            raise StructureError(
                "Strategy.run",
                found=f"the replicas returned {', '.join(type(leaf).__name__ for leaf in column)} for the same leaf",
                rule="inside a compiled function, replicas must return arrays, or all of them the same object",
                remedy="return arrays of one shape on every replica, or run eagerly",
            )
        is_replicated = is_declared or self._is_one_object(column)
        return _ResultLeaf(is_array=True, is_replicated=is_replicated, is_declared=is_declared)

    def _is_one_object(self, column: Sequence[Any]) -> bool:
        """Returns whether all replicas return the same object, which they have received from a `merge_call`.

        As in TensorFlow, this object is the result, not a per-replica value of it. A tracer that a variable has as its
        new value may also come from a read, of which each replica has a component of its own.
        """
        if not self._runner.is_merged(column):
            return False
        store = self._runner.store
        return not any(store.local(entry.variable, 0) is column[0] for entry in store.staged.values())

    # Checks

    def _analysis(self, body: Staged) -> ReplicationCheck:
        """Returns the analysis of which values in a traced body are equal on all replicas.

        It stays valid if outputs of the body are removed.
        """
        origins = [origin_of(constant) for constant in body.constants]
        origins += [Origin(label, varies=True) for label, _ in self._inputs for _ in range(self._local)]
        return check_replication(body.jaxpr, origins, axis=AXIS if len(self._device_assignment.devices) > 1 else None)

    def _check_merges(self, body: Staged, analysis: ReplicationCheck) -> None:
        """Raises an error if arrays or variables that a `merge_call` function uses may differ between replicas."""
        outputs = self._outputs.split(body.jaxpr.outvars)
        for (called, name), atoms in zip(self._enclosed, outputs.enclosed, strict=True):
            if not analysis.same(atoms):
                raise merged_differently_error(called, name, analysis.explain(atoms))
        for read, atoms in zip(self._runner.store.joined, outputs.joined, strict=True):
            if not analysis.same(atoms):
                raise would_differ_error(read.variable, read.where, _how(analysis, atoms))

    def _check_unchanged(self, body: Staged, analysis: ReplicationCheck) -> None:
        """Raises an error if a replica assigns random keys that may differ from the keys that it reads."""
        outputs = self._outputs.split(body.jaxpr.outvars)
        for (*_, error), (value, own) in zip(self._runner.unchanged, outputs.unchanged, strict=True):
            if value is not own and analysis.numbers[value] != analysis.numbers[own]:
                raise error

    def _check_loss_scale(self, body: Staged, analysis: ReplicationCheck) -> None:
        """Warns if an optimizer in a compiled run sums gradients of a loss with the wrong scale."""
        if not self._outputs.gradients:
            return
        num_captured = len(body.constants)
        num_inputs = len(body.jaxpr.constvars) + len(body.jaxpr.invars) - num_captured
        owners = [None] * num_captured + [i % self._local for i in range(num_inputs)]
        scale = LossScaling(body.jaxpr, owners, body.constants, self._device_assignment.num_replicas, AXIS)
        gradients = iter(self._outputs.split(body.jaxpr.outvars).gradients)
        for summed in self._runner.summed:
            rows = [next(gradients) for _ in summed.rows]
            check_loss_scale(summed._replace(rows=rows), scale, analysis, self._device_assignment.num_replicas)

    def _check_replicated(self, body: Staged, outputs: BodyOutputs, analysis: ReplicationCheck) -> None:
        """Raises an error if assigned or returned values that must be equal on all replicas may differ.

        These are the values assigned to mirrored variables, and the results that `out_specs` declares. A result that is
        one object without a declaration becomes a per-replica value instead.
        """
        outputs = outputs.split(body.jaxpr.outvars)
        analysis.check_collectives()
        for entry, atoms, differs in zip(self._assigned, outputs.assigned, self._differs_eagerly, strict=True):
            if entry.variable.per_replica or self._is_repeated:
                continue
            if not analysis.same(atoms):
                raise would_differ_error(entry.variable, entry.where, _how(analysis, atoms))
            if differs and self._reads(body, entry.variable):
                warn_of_assignment_per_replica(entry.variable, entry.where, self._device_assignment.num_replicas)
        returned = [(place, leaf) for place, leaf in enumerate(self._leaves) if leaf.is_array]
        for (place, leaf), atoms in zip(returned, outputs.results, strict=True):
            if not leaf.is_replicated or (leaf.is_declared and self._is_repeated) or analysis.same(atoms):
                continue
            if leaf.is_declared:
                path = analysis.explain(atoms)
                raise not_replicated_error(
                    structures.label_of(self._out_treedef, place), f"How the replicas' values diverge:\n{path}\n"
                )
            leaf.is_replicated = False

    @staticmethod
    def _is_assigned_per_replica_eagerly(entry: StagedAssignment) -> bool:
        """Returns whether an eager run would assign the variable once per replica."""
        return entry.variable.device_assignment is None and entry.whole is None and not entry.is_update

    @staticmethod
    def _reads(body: Staged, variable: Any) -> bool:
        if variable.internal or variable.counts_replicas:
            return False
        sources = [constant.source for constant in body.constants if isinstance(constant, CaptureTracer)]
        return any(isinstance(source, Captured) and source.variable is variable for source in sources)

    # The result of the run

    def _finish(self, values: Sequence[Any]) -> Any:
        """Assigns the run's new variable values in the enclosing function's store, and returns the run's result."""
        remaining = iter(values)
        leaves = [leaf.static if not leaf.is_array else self._wrapped(leaf, next(remaining)) for leaf in self._leaves]
        if isinstance(self._outermost, FunctionStore):
            self._outermost.bit_identical |= self._runner.bit_identical
            self._outermost.device_assignment = self._device_assignment
        for entry, value in zip(self._assigned, remaining, strict=True):
            self._outer_store.set_whole(entry.variable, value, entry.where[0])
        return self._out_treedef.unflatten(leaves)

    def _wrapped(self, leaf: _ResultLeaf, value: Any) -> Any:
        return value if leaf.is_replicated else PerReplica.from_stacked(value, self._device_assignment)


def _how(analysis: ReplicationCheck, atoms: Sequence[Any]) -> str:
    return f". How the replicas' values diverge:\n{analysis.explain(atoms)}\n"
