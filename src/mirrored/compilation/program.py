"""`Program`: the traced and compiled program of a function for one argument signature."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import caches
from mirrored._jax.arrays import as_array, has_host_dtype
from mirrored._jax.bit_identical import jit
from mirrored._jax.boxes import payload_of
from mirrored._jax.inlining import Staged, captured_arrays, digest_of, has_callbacks, has_ordered_printing, stage
from mirrored._jax.interrupts import dispatch_of
from mirrored._jax.traces import CaptureTracer, Tracer, current_trace, is_eval
from mirrored._jax.trees import Structure, tree_flatten
from mirrored.compilation import dispatch
from mirrored.compilation.captured_objects import refuse_forgotten
from mirrored.compilation.dispatch import DonatingSteps, WorkerArguments, lose_failed
from mirrored.compilation.plain_variables import moving_plain
from mirrored.compilation.program_checks import (
    check_devices,
    check_ordered,
    explained_failure,
    explaining_forward_mode,
    is_outer,
    refuse_rerun,
    several_processes,
    sharding_of,
)
from mirrored.compilation.results import refuse_result
from mirrored.compilation.scan import Scan
from mirrored.compilation.signature import Arguments, is_leaf, one_array_of
from mirrored.runtime.ambient import ambient, announce_read, announce_reassignment, within
from mirrored.runtime.component_reads import announced_components
from mirrored.runtime.staged_values import Bookkeeping, take_values
from mirrored.runtime.variable_store import FunctionStore
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.variables.creation import supply_values, withheld
from mirrored.variables.former import note_step
from mirrored.variables.open_shapes import OpenShapes, valid_program
from mirrored.variables.state_lock import (
    assignment_lock,
    exempt_from_lock,
    lock,
    note_former,
    refuse_callbacks,
    state,
    store_all,
    thread,
    tracing,
)


@dataclasses.dataclass(frozen=True)
class Result(Bookkeeping):
    """Describes one leaf of a program's result: a static object, or an output array and its conversion (`wrap`).

    Attributes:
        is_array: Whether it is an array.
        components: The number of components of a per-replica value in this process; 0 for other leaves.
        wrap: Converts the array for the user.
        static: The static object, if the leaf is not an array.
    """

    is_array: bool = False
    components: int = 0
    wrap: Callable[[Any], Any] | None = None
    static: Any = None

    @property
    def is_per_replica(self) -> bool:
        """Whether this leaf of a result is a per-replica value, stored as one array with a leading replica axis."""
        return self.components > 0

    def described(self, array: jax.ShapeDtypeStruct) -> Any:
        """Returns the shape and dtype of an array leaf: a `jax.ShapeDtypeStruct`, or a `PerReplica` of such structs."""
        if not self.is_per_replica:
            return array
        return PerReplica.of_components([jax.ShapeDtypeStruct(array.shape[1:], array.dtype)] * self.components, None)


class Program:
    """The compiled program of a function for one argument signature, with variables as operands and results.

    Args:
        function: The Python function.
        arguments: The arguments of the call for which it is traced.
        donate: Whether buffers of assigned variables are donated and reused for the new values. A single step donates
            only variables that it also reads, since it does not get the old values of others; a program with callbacks
            donates none (see `_compile`).
        steps: The number of steps per execution, run as one scan. None: one step, and results have no dimension of
            steps.
        owner: The `Function` to which the program belongs, and whose `traced_function` a call under a tape may trace
            again.
        under_tape: Whether the program is for calls under a tape (see `FunctionStore`).

    Attributes:
        created: The variables created during tracing.
        shapes: The variables whose shape may change, and the shapes for which the program is valid.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        *,
        donate: bool,
        steps: int | None = None,
        owner: Any = None,
        under_tape: bool = False,
    ) -> None:
        # A weak reference: the function holds its programs, and in a reference cycle the function, its programs and
        # their variables would wait for Python's collector.
        self._owner = None if owner is None else weakref.ref(owner)
        self._recorded: Program | None = None
        self._arguments = arguments
        self._steps = steps
        self._donate = donate
        self._store = FunctionStore(under_tape=under_tape)
        self._store.has_fallback = not under_tape
        self.shapes = OpenShapes()
        self._name = str(getattr(function, "__name__", "function"))
        self._results: list[Result] = []
        self._out_treedef: Structure
        staged = self._stage(function)
        refuse_forgotten(self._store.new, self._name)
        self.created = self._store.new
        self._arrays = [jax.ShapeDtypeStruct(*one) for one in staged.results[len(self._store.staged) :]]
        self._compile(staged)
        self._arguments = arguments.without_arrays()
        # Fast path for the most common result: one array, which needs no wrapper.
        self._one_array = jax.tree_util.treedef_is_leaf(self._out_treedef.treedef) and self._results == [Result(True)]

    def _stage(self, function: Callable[..., Any]) -> Staged:
        def flat(*arrays: Any) -> list[Any]:
            self._store.base_trace = current_trace()
            args, kwargs = self._arguments.rebuilt(arrays)
            with within(store=self._store, listeners=(self._store,), shapes=self.shapes):
                out = function(*args, **kwargs)
            leaves, self._out_treedef = tree_flatten(out, is_leaf)
            flat_out = [array for leaf in leaves if (array := self._take_result(leaf)) is not None]
            return [*take_values(self._store.staged), *flat_out]

        with caches.fresh(), explaining_forward_mode(self._name, self._store):
            return stage(flat, self._arguments.shapes()).with_own_constants()

    def described(self) -> Any:
        """Returns a step's result with shapes and dtypes (`jax.ShapeDtypeStruct`) in place of arrays."""
        arrays = iter(self._arrays)
        leaves = [result.described(next(arrays)) if result.is_array else result.static for result in self._results]
        return self._out_treedef.unflatten(leaves)

    def _take_result(self, leaf: object) -> Any:
        """Records the kind of a result leaf and returns its array, or None if the leaf is static."""
        if isinstance(leaf, PerReplica) and leaf.device_assignment is not None:
            device_assignment, made_by = leaf.device_assignment, leaf.made_by
            self._results.append(
                Result(
                    True,
                    len(device_assignment.addressable_replicas),
                    lambda array: PerReplica.from_stacked(array, device_assignment, made_by),
                )
            )
            return one_array_of(leaf, device_assignment, self._store)
        if isinstance(leaf, Mirrored):
            count = leaf.num_replicas
            self._results.append(Result(is_array=True, wrap=lambda array: Mirrored(array, count)))
            return leaf.value
        if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and not has_host_dtype(leaf):
            self._results.append(Result(is_array=True))
            return as_array(leaf)
        if isinstance(leaf, np.ndarray):  # strings: every call returns this array, so it is read-only
            leaf = leaf.copy()
            leaf.flags.writeable = False
        refuse_result(leaf, self._name)
        self._results.append(Result(static=leaf))
        return None

    def _compile(self, staged: Staged) -> None:
        read = [variable for variable, _ in self._store.captured.values()]
        staged, assigned = self._order_for_aliasing(staged, read)
        assigned_ids = {id(variable) for variable in assigned}
        self.variables = tuple({id(variable): variable for variable in (*read, *assigned)}.values())
        # A scan carries every assigned variable. A single step does not take old values that it never reads.
        carried = assigned if self._steps is not None else [v for v in read if id(v) in assigned_ids]
        self._synchronous = has_callbacks(staged.jaxpr)
        # A callback may fail in the middle of the program, and may read variables. The variables' old buffers must
        # survive until then, so a program with callbacks donates none.
        self._donated = carried if self._donate and not self._synchronous else []
        self._keeps_old = bool(assigned) and not self._donate and not self._synchronous
        donated_ids = {id(variable) for variable in self._donated}
        self._not_donated = [v for v in {id(v): v for v in (*read, *carried)}.values() if id(v) not in donated_ids]
        self._reads = (*self._donated, *self._not_donated)
        self._plain_reads = [one for one in self._reads if one.device_assignment is None]
        self._assigned = tuple(assigned)
        self._outer = [c for c in staged.constants if is_outer(c)]
        smallest = dispatch.smallest_computed(staged.jaxpr, self._arrays)
        self._token = smallest is None
        self._watched = len(assigned) + (len(self._arrays) if smallest is None else smallest)
        places = {id(v): i for i, v in enumerate(self._reads)}
        num_state, num_outer, token = len(places), len(self._outer), self._token
        sources = [places.get(id(c.source)) if isinstance(c, CaptureTracer) else None for c in staged.constants]

        def step(state: Sequence[Any], outer: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
            remaining = iter(outer)
            constants = [
                state[place] if place is not None else next(remaining) if is_outer(constant) else constant
                for place, constant in zip(sources, staged.constants, strict=True)
            ]
            return staged(constants, inputs)

        scan = None
        if self._steps is not None:
            arrays = [result for result in self._results if result.is_array]
            carry = [places[id(v)] for v in assigned]
            derived = {places[key] for key in self._store.differentiated} if self._store.under_tape else set(carry)
            scan = Scan(step, self._steps, carry, arrays, derived)

        name, num_donated = self._name, len(self._donated)

        # It refers to no `Program`: in a reference cycle the variables would wait for Python's collector.
        def program(*operands: Any) -> list[Any]:
            refuse_rerun(name, operands[:num_donated])
            state, rest = list(operands[:num_state]), operands[num_state:]
            outer, inputs = rest[:num_outer], rest[num_outer:]
            outs = step(state, outer, inputs) if scan is None else scan(state, outer, inputs)
            return [*outs, jnp.zeros((), jnp.int32)] if token else outs

        self._where = check_devices(self._name, self._store, (*assigned, *read))
        self._store.bit_identical |= any(variable.is_deterministic for variable in (*assigned, *read))
        if has_ordered_printing(staged.jaxpr):
            check_ordered(self._name, self._store, (*assigned, *read))
        shardings = [sharding_of(variable.device_assignment, variable.per_replica) for variable in assigned]
        self._several = several_processes(self._store, (*assigned, *read))
        self._digest = "" if self._several is None else digest_of(staged.jaxpr, staged.constants)
        captured = [] if self._several is None else captured_arrays(staged.jaxpr, staged.constants)
        self._met = WorkerArguments(self._name, captured, self._reads)
        rest = [sharding_of(self._several, result.is_per_replica) for result in self._results if result.is_array]
        pinned = [*shardings, *rest, *[None] * token] if any(sharding is not None for sharding in shardings) else None
        compiled = functools.partial(jit, bit_identical=self._store.bit_identical, out_shardings=pinned)
        donated = tuple(range(len(self._donated)))
        self._plain = compiled(program)
        self._jitted = compiled(program, donate_argnums=donated) if donated else self._plain
        self._donating = DonatingSteps(dispatch_of(self._jitted), len(donated), assigned) if donated else None

    def _order_for_aliasing(self, staged: Staged, read: Sequence[Any]) -> tuple[Staged, list[Any]]:
        """Orders the outputs for assigned variables like the variables' operands, so that XLA can alias the buffers.

        JAX aliases each donated buffer with the first result of the same shape. If that result belonged to another
        variable, XLA would have to copy the buffers in every step.
        """
        assigned = [variable for variable, _ in self._store.staged.values()]
        when = {id(variable): place for place, variable in enumerate(read)}
        order = sorted(range(len(assigned)), key=lambda i: when.get(id(assigned[i]), len(read)))
        results = range(len(assigned), len(staged.jaxpr.outvars))
        return staged.giving([*order, *results]), [assigned[i] for i in order]

    def lower(self, arrays: Sequence[Any]) -> Any:
        """Lowers the program for the given arrays with JAX, to inspect its HLO."""
        supply_values(self._reads)
        with lock:
            return moving_plain(self._lowered, arrays, self._plain_reads, self._where)

    def _lowered(self, arrays: Sequence[Any]) -> Any:
        return self._jitted.lower(*(one.borrowed() for one in self._reads), *self._outer, *arrays)

    def __call__(self, arrays: Sequence[Any], arguments: Arguments | None = None) -> Any:
        """Runs the program on the variables' current values, and assigns all new values or none of them.

        After Ctrl-C the values may be assigned although the call raises. If a program that has donated buffers fails on
        the device, the variables of these buffers are lost: reading them raises `LostStateError`.

        Args:
            arrays: The arguments' arrays, concatenated over all steps.
            arguments: The arguments of this call. None: they are arrays and immutable constants, which are those of the
                first call. Objects of the first call may have been mutated since.
        """
        if not is_eval(current_trace()):
            return self._call_recorded(arrays, arguments or self._arguments)
        if state.calls_back or withheld:
            refuse_callbacks(self._name)
            supply_values(self._reads)
            for variable in self._assigned:
                variable.before_write()
        try:
            outs = self._dispatched(arrays)
            if withheld:
                for variable in self._assigned:
                    variable.release()
            results = outs[len(self._assigned) :]
            dispatch.launched(outs[self._watched])
        except jax.errors.JaxRuntimeError as error:
            dispatch.forget()
            # It is the error of this step, or of an earlier one that has failed meanwhile. An interrupt needs no
            # handling: the variables have either all old or all new values.
            lose_failed(self._reads, error, waits=self._several is None)
            for variable in self._not_donated:
                if variable.is_lost:  # its own step has failed before, and this one has only read it
                    variable.stored()
            raise
        return self._wrapped(results)

    def _dispatched(self, arrays: Sequence[Any]) -> list[Any]:
        """Dispatches the program and stores the variables' new values; returns these values and all steps' results."""
        # A program that only reads variables takes their values under the lock. It does not wait for an eager run of
        # another thread.
        with assignment_lock() if self._assigned else lock, lock:
            if state.step is not None:
                state.step.finish()
            if thread.before is not None:
                note_former(self._assigned)
            try:
                if self._several is not None:
                    arrays = self._met.arguments(arrays, self._several, self._digest)
                outs, interruption = moving_plain(self._launched, arrays, self._plain_reads, self._where)
            except BaseException as error:
                if self._several is not None:
                    self._met.record_dispatch(None)
                explained = explained_failure(self._name, error, self._store)
                if explained is None:
                    raise
                raise explained from None
            if self._several is not None:
                self._met.record_dispatch(outs[self._watched])
        if interruption is not None:  # an interrupt during the step, kept until its results were stored
            raise interruption
        return outs

    def _launched(self, arrays: Sequence[Any]) -> tuple[list[Any], BaseException | None]:
        """Runs the program, and returns its results and an exception that has interrupted it meanwhile."""
        rest = [variable.borrowed() for variable in self._not_donated] + self._outer
        rest += arrays
        if self._donating is None:
            return self._run(rest), None
        step = self._donating(rest)
        return step.results, step.interruption

    def _run(self, operands: Sequence[Any]) -> list[Any]:
        """Runs the program without donating buffers, and stores the new values of variables."""
        if self._synchronous:
            state.calls_back = threading.get_ident()
        try:
            outs: list[Any] = self._plain(*operands)
            if self._synchronous:
                jax.block_until_ready(outs)
        finally:
            state.calls_back = 0
        self._store_new(outs)
        return outs

    def _store_new(self, outs: Sequence[Any]) -> None:
        """Stores the new values of variables; if `_keeps_old`, saves the old values until the step has succeeded."""
        if self._keeps_old and not isinstance(outs[-1], Tracer):
            note_step(self._assigned, outs, outs[self._watched], waits=self._several is None)
        store_all(self._assigned, outs)

    def _call_recorded(self, arrays: Sequence[Any], arguments: Arguments) -> Any:
        """Runs the program under a tape or JAX transform, without donating buffers to which residuals may refer.

        Residuals may refer to the new values of variables, too, which are therefore marked as shared.

        Reads are announced to the tape. Their values are boxes, so JAX binds the primitive `jit`, and the tape records
        it as one operation.
        """
        rereads = self._assigned and (self._store.rereads or self._steps is not None)
        if (rereads or self._store.embeds_arrays or self._store.bit_identical) and not self._store.under_tape:
            return self._under_tape(arguments)._call_recorded(arrays, arguments)
        with assignment_lock() if self._assigned else nullcontext():
            if ambient().store is None:
                supply_values(self._reads)
            for variable in self._assigned:
                variable.check_writable_here("function")
                variable.before_write()
            payloads = [payload_of(array) for array in arrays]
            # Tracers of a JAX transform have no values that workers could compare.
            together = self._several is not None and not any(isinstance(one, Tracer) for one in payloads)
            if together:
                self._met.arrive(payloads, self._digest)
            try:
                outs = moving_plain(self._announced_call, arrays, self._plain_reads, self._where)
            except BaseException as error:
                if together:
                    self._met.record_dispatch(None)
                explained = explained_failure(self._name, error, self._store)
                if explained is None:
                    raise
                raise explained from error
            if together:
                self._met.record_dispatch(payload_of(outs[self._watched]))
            self._store_new([*map(payload_of, outs)])
            for variable, value in zip(self._assigned, outs, strict=False):
                variable.mark_shared()
                variable.release()
                announce_reassignment(variable, value if id(variable) in self._store.differentiated else None)
        return self._wrapped(outs[len(self._assigned) :])

    def _announced_call(self, arrays: Sequence[Any]) -> Any:
        return self._plain(*self._announced_values(), *self._outer, *arrays)

    def _announced_values(self) -> list[Any]:
        """Returns the current values of the variables and announces these reads to gradient tapes."""
        is_stored = ambient().store is None  # the values in a store are those of this thread's run or trace
        if is_stored:
            refuse_callbacks(self._name)
            supply_values(self._reads)  # takes the assignment lock, which comes before `lock`
        with lock if is_stored else nullcontext():  # all values are those after the same step
            values = [one.stored() if one.per_replica else one.checked_value() for one in self._reads]
        return [
            announced_components(variable, value) if variable.per_replica else announce_read(variable, value)
            for variable, value in zip(self._reads, values, strict=True)
        ]

    def _under_tape(self, arguments: Arguments) -> Program:
        """Returns a separately traced version of this program, for calls under a tape.

        Under a tape a value that is read after an assignment has another derivative, a deterministic run sums
        cotangents in another order, and arrays over which transforms in a run close are operands.
        """
        owner = None if self._owner is None else self._owner()
        assert owner is not None, "a program is called by its function"
        function = owner.traced_function
        with tracing:
            if self._recorded is None or valid_program([self._recorded]) is None:
                make = functools.partial(Program, donate=False, steps=self._steps, under_tape=True)
                self._recorded = exempt_from_lock(lambda: make(function, arguments))
                # As in calls without a tape: a program that donates keeps no old values, at its user's choice.
                self._recorded._keeps_old = self._keeps_old
        return self._recorded

    def _wrapped(self, arrays: Sequence[Any]) -> Any:
        if self._one_array:
            return arrays[0]
        remaining = iter(arrays)
        leaves = []
        for result in self._results:
            if not result.is_array:
                leaves.append(result.static)
            else:
                array = next(remaining)
                leaves.append(array if result.wrap is None else result.wrap(array))
        return self._out_treedef.unflatten(leaves)
