"""`TapeTrace`: the JAX trace through which a gradient tape receives every primitive.

If no operand is watched, the primitive runs under the parent trace, unrecorded. Otherwise the forward program of its
rule runs there, and a record keeps the residuals for the backward pass. The module `calls` has the exceptions.

Results that are concrete arrays become boxes (`mirrored._jax.boxes`): all tracked results under an eager parent, and
under an outer tape those that the outer tape does not track. All other results (tracers, boxes of an outer tape) are
values of the parent, and the tape tracks them by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax import caches
from mirrored._jax.array_likes import registered_as_arrays
from mirrored._jax.boxes import STAND_INS, Array, Box, device_put_p, payload_of, stop_gradient_p
from mirrored._jax.closures import custom_calls, embedded_arrays
from mirrored._jax.custom_derivatives import binder, has_rule_of_jax, is_from_jax
from mirrored._jax.inlining import program_of
from mirrored._jax.jaxprs import aval_of
from mirrored._jax.traces import (
    Trace,
    WithinTrace,
    current_trace,
    is_eval,
    is_eval_below,
    put_trace,
    share_identity,
    trace_below_tapes,
)
from mirrored._typing import Operand
from mirrored.tape import calls, catalogue, merging
from mirrored.tape.no_derivative import Key
from mirrored.tape.operation import Operation, QuickRules
from mirrored.tape.record import AliasRecord, Record, RuleRecord, new_key, owned_operand, partial_record

if TYPE_CHECKING:
    import jax

    from mirrored._jax.boxes import BoxTracer, ReadTracer
    from mirrored._jax.custom_derivatives import WrappedFun
    from mirrored._jax.jaxprs import Primitive
    from mirrored.runtime.merge import Merge
    from mirrored.tape.record import Recorder

_FIRST: tuple[int, ...] = (0,)
_BOTH: tuple[int, ...] = (0, 1)
_quick_rules = QuickRules()


class TapeTrace(Trace):  # type: ignore[misc]
    """The JAX trace of one gradient tape: records the primitives applied to tracked values.

    Attributes:
        parent: The trace that was current when the tape was entered.
        outer_token: The token of `_jax.caches` that was current then.
        recorder: The recorder, or None while the tape is not recording. Primitives then pass through to the parent.
        touched: While a function with a custom derivative rule runs, the keys of the tracked values that it uses.
            Nothing is recorded during this time. None at all other times.
        eager: Whether the parent evaluates primitives immediately; False if it is another tape, in eager code, too.
    """

    __slots__ = ("_stale", "eager", "outer_token", "parent", "recorder", "touched")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        share_identity(self)
        self.parent: Any = None
        self.outer_token: Any = None
        self.recorder: Recorder | None = None
        self.touched: dict[Key, None] | None = None
        self.eager = False
        self._stale: list[Any] = []

    # Lifecycle

    def enter(self, parent: Trace, outer_token: Hashable, recorder: Recorder) -> None:
        """Starts recording, with `parent` as the JAX trace that executes the primitives."""
        self.parent = parent
        self.outer_token = outer_token
        self.eager = is_eval(parent)
        self.recorder = recorder

    def leave(self) -> None:
        """Stops recording, at the end of the tape's block."""
        self.recorder = None
        self._forget_stale()

    def mark_stale(self, functions: list[Any]) -> None:
        """Registers functions whose cached JAX traces must be evicted, because the traces hold a tracked array.

        A stand-in of its box is their constant. `_forget_stale` evicts them before the next primitive, or at the end.
        """
        self._stale += functions

    def _forget_stale(self) -> None:
        if self._stale:
            stale, self._stale = self._stale, []
            caches.forget_traces(stale)

    # Methods that JAX calls

    def stage_value(self, value: Operand) -> Any:
        """Converts a NumPy operand to a device array, as JAX does without a tape."""
        with self.under_parent():
            return self.parent.stage_value(owned_operand(value))

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any], /) -> Any:
        """Executes a JAX primitive; records the operation if this tape tracks an operand."""
        if self._stale:
            self._forget_stale()
        if self.touched is not None and primitive is stop_gradient_p:
            return self._stop_gradient(primitive, args, params)
        values, keys, watched = self.split_operands(args)
        if self.recorder is not None and self.recorder.known:
            closed_over = [array for array in embedded_arrays(params) if calls.is_known(self, array)]
            if closed_over and self.touched is None:
                return calls.process_lifted(self, primitive, params, closed_over, (values, keys, watched))
            if closed_over:
                self.split_operands(closed_over)  # adds their keys to `touched`
        if not watched:
            with self.under_parent():
                return primitive.bind(*values, **params)
        if primitive is device_put_p:  # a cached rule is a compiled program, in which it transfers nothing
            return calls.process_transfer(self, values, keys, watched, params)
        unrolled = calls.UNROLLED.get(primitive)
        if unrolled is not None and is_eval(trace_below_tapes(self.parent)):  # `lax.while_loop` in eager code
            return unrolled(self, args, params)
        operation = catalogue.of_primitive(primitive, params)
        results = self.perform(operation, values, keys, watched)
        if operation.custom_calls:
            results = calls.refusing_captured_gradients(self, primitive, results, params, operation.name)
        return results if primitive.multiple_results else results[0]

    def _stop_gradient(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Applies `stop_gradient` without noting that tracked operands are used."""
        touched, self.touched = self.touched, {}
        try:
            values, _, _ = self.split_operands(args)
        finally:
            self.touched = touched
        with self.under_parent():
            return primitive.bind(*values, **params)

    def process_custom_jvp_call(
        self,
        primitive: Primitive,
        function: WrappedFun,
        jvp: WrappedFun,
        args: Sequence[Any],
        /,
        *,
        symbolic_zeros: bool,
    ) -> Any:
        """Runs a `jax.custom_jvp` function under the tape; records the call if an operand is tracked."""
        bind = binder(primitive, (function, jvp), {"symbolic_zeros": symbolic_zeros})
        split = self.split_operands(registered_as_arrays(args, self.as_current))
        if not is_from_jax(function) or not has_rule_of_jax(jvp):
            return calls.process(self, bind, function, *split, str(primitive))
        return calls.process_library(self, bind, (primitive, function, symbolic_zeros), jvp, *split)

    def process_custom_vjp_call(
        self,
        primitive: Primitive,
        function: WrappedFun,
        forward: WrappedFun,
        backward: WrappedFun,
        args: Sequence[Any],
        /,
        *,
        out_trees: Callable[..., Any],
        symbolic_zeros: bool,
    ) -> Any:
        """Runs a `jax.custom_vjp` function under the tape; records the call if an operand is tracked."""
        params = {"out_trees": out_trees, "symbolic_zeros": symbolic_zeros}
        bind = binder(primitive, (function, forward, backward), params)
        split = self.split_operands(registered_as_arrays(args, self.as_current))
        return calls.process(self, bind, function, *split, str(primitive), runs_rule=True)

    def process_shard_map(self, primitive: Primitive, function: WrappedFun, args: Sequence[Any], **params: Any) -> Any:
        """Runs a `jax.shard_map` call outside `jit`; traces it first, so that captured values become operands."""
        args = registered_as_arrays(args, self.as_current)
        result: list[Any] = []

        def bind(*arrays: Any) -> list[Any]:
            outs = primitive.bind(*arrays, subfuns=(function,), **params)
            result[:] = [outs.update([None] * len(outs))]  # not the tracers, which are invalid after the trace
            return list(outs)

        values, _, _ = self.split_operands(args)
        with self.as_current():
            program = program_of(bind, [aval_of(value) for value in values])
        operation = Operation(program.of_constants, str(primitive), custom_calls({"": program.jaxpr}))
        return result[0].update(self.apply(operation, [*program.constants, *args]))

    def process_call(
        self, primitive: Primitive, function: WrappedFun, args: Sequence[Any], params: Mapping[str, Any], /
    ) -> Any:
        """Runs a call primitive of older JAX versions, by running the called function under this trace."""
        with self.as_current():
            return function.call_wrapped(*args)

    def process_merge(self, merge: Merge, payload: list[Any]) -> list[Any]:
        """Executes a collective or `merge_call` of all replicas, and records the operation."""
        return merging.process(self, merge, payload)

    def process_outer_merge(self, run: Callable[[list[Any]], list[Any]], payload: list[Any]) -> list[Any]:
        """Executes a collective or `merge_call` of an eager run that this tape is around."""
        return merging.process_outer(self, run, payload)

    # Recording

    def apply(self, operation: Operation, args: Sequence[Any]) -> list[Any]:
        """Runs a differentiable operation; records the operation if this tape tracks an operand."""
        values, keys, watched = self.split_operands(args)
        if not watched:
            return run_under(self.parent, operation, values)
        return self.perform(operation, values, keys, watched)

    def perform(self, operation: Operation, values: list[Any], keys: list[Key], watched: tuple[int, ...]) -> list[Any]:
        """Runs the forward program of an operation on tracked operands, and records the operation."""
        previous, token = current_trace(), caches.current()
        try:  # before the replacement of either: an interrupt may come between any two calls
            put_trace(self.parent)
            if self.eager:
                caches.put(None)
            rule = operation.rule(tuple([aval_of(value) for value in values]), watched)
            if not rule.any_tracked:
                return run_under(self.parent, operation, values)
            results = run_under(self.parent, rule.forward, values)
        finally:
            try:
                put_trace(previous)
            finally:
                if self.eager:
                    caches.put(token)
        if rule.passes:
            record: Record = AliasRecord(keys, watched)
        elif rule.lost:
            record = partial_record(operation, rule, dict(zip(watched, keys, strict=True)), values, results)
        else:
            record = RuleRecord(keys, watched, operation, rule, rule.residuals(values, results))
        return self.add(record, results[: rule.num_results], rule.tracked, values)

    def add(self, record: Record, results: list[Any], tracked: Sequence[bool], inputs: Sequence[Any] = ()) -> list[Any]:
        """Adds a record to the tape; returns the results, wrapped as tracked arrays where `tracked` is True."""
        recorder = self.recorder
        if recorder is None:
            return results
        out_keys: list[Key | None] = [None] * len(results)
        for position, is_tracked in enumerate(tracked):
            if is_tracked:
                key = new_key()
                out_keys[position] = key
                results[position] = self._tracked(results[position], key, recorder)
        record.out_keys = out_keys
        if recorder.persistent:
            record.inputs = self._rewrapped(inputs, record)
        recorder.records.append(record)
        return results

    def operate(self, name: str, left: Box, right: Operand) -> Any:
        """Applies a binary operator such as ``+`` to an array that the tape tracks and another operand.

        Args:
            name: The operator, a key of `catalogue.OPERATORS`.
            left: The box.
            right: A box, an array or a number.
        """
        recorder = self.recorder
        operation = catalogue.OPERATORS[name]
        kind = type(right)
        if not self.eager or recorder is None or self.touched is not None or left.key <= recorder.since:
            return self.apply(operation, (left, right))[0]
        if kind is Box:
            if right.owner is not self or right.key <= recorder.since:
                return self.apply(operation, (left, right))[0]
            return self._perform_quickly(operation, (left.payload, right.payload), (left.key, right.key), _BOTH)
        if kind is Array and id(right) in recorder.known:
            keys = left.key, recorder.known[id(right)][0]
            return self._perform_quickly(operation, (left.payload, right), keys, _BOTH)
        if kind is not Array:
            right = owned_operand(right)
        return self._perform_quickly(operation, (left.payload, right), (left.key,), _FIRST)

    def operate_alone(self, operation: Operation, box: Box) -> Any:
        """Applies an operation with one input and one result to an array that the tape tracks."""
        recorder = self.recorder
        if not self.eager or recorder is None or self.touched is not None or box.key <= recorder.since:
            return self.apply(operation, (box,))[0]
        return self._perform_quickly(operation, (box.payload,), (box.key,), _FIRST)

    def negated(self, box: Box) -> Any:
        """Returns the negative of an array that the tape tracks, and records the operation."""
        return self.operate_alone(catalogue.NEGATIVE, box)

    def _perform_quickly(
        self, operation: Operation, values: tuple[Any, ...], keys: tuple[Key, ...], watched: tuple[int, ...]
    ) -> Any:
        """Runs an operation with one result and records it, on the fast path of a recording eager tape."""
        token = caches.current()
        try:  # as in `perform`
            put_trace(self.parent)
            caches.put(None)
            rule = _quick_rules.find(operation, values, watched)
            results: Sequence[Any] = rule.forward.jitted(*values) if rule.is_plain else ()
        finally:
            try:
                put_trace(self)
            finally:
                caches.put(token)
        if not results:
            return self.perform(operation, list(values), list(keys), watched)[0]
        record: Record = (
            AliasRecord(keys, watched)
            if rule.passes
            else RuleRecord(keys, watched, operation, rule, rule.residuals(values, results))
        )
        key = new_key()
        record.out_keys = (key,)
        recorder = self.recorder
        assert recorder is not None
        if recorder.persistent:
            record.inputs = self._rewrapped(values, record)
        recorder.records.append(record)
        return Box(self, results[0], key)

    def _tracked(self, value: jax.Array, key: Key, recorder: Recorder) -> Any:
        if type(value) is Array:
            return Box(self, value, key)
        if id(value) in recorder.known:  # a result that is an operand itself must have an identity of its own
            value = self.copied(value)
        recorder.known[id(value)] = (key, value)
        return value

    def _rewrapped(self, values: Sequence[Any], record: Record) -> list[Any]:
        inputs = list(values)
        for position, key in zip(record.watched, record.in_keys, strict=False):
            if type(inputs[position]) is Array:
                inputs[position] = Box(self, inputs[position], key)
        return inputs

    def copied(self, value: jax.Array) -> Any:
        """Returns an array as a new Python object, which this tape does not track."""
        if type(value) is Box:
            return Box(value.owner, value.payload, value.key)
        return run_under(self.parent, catalogue.COPY, [value])[0]

    def is_concrete(self, value: object) -> bool:
        """Returns whether `value` is a plain concrete array, neither tracked by a tape nor a tracer."""
        return type(value) is Array

    # Operands

    def split_operands(self, args: Sequence[Any]) -> tuple[list[Any], list[Key], tuple[int, ...]]:
        """Unwraps operands: returns their plain values, and the keys and positions of those that the tape tracks.

        While `touched` is set, adds the keys to it, and returns no operand as tracked.
        """
        recorder = self.recorder
        known, since = (recorder.known, recorder.since) if recorder is not None else ({}, 0)
        values: list[Any] = []
        keys: list[Key] = []
        watched: list[int] = []
        has_numpy = False
        for position, value in enumerate(args):
            if type(value) in STAND_INS:
                value = self._resolved(value)
            if type(value) is Box and value.owner is self and value.key > since:
                keys.append(value.key)
                watched.append(position)
                value = value.payload
            else:
                entry = known.get(id(value))
                if entry is not None:
                    keys.append(entry[0])
                    watched.append(position)
                if type(value) is Box and (self.eager or value.owner is self):
                    value = value.payload
                elif type(value) is not Array and isinstance(value, np.ndarray):
                    has_numpy = True
            values.append(value)
        if recorder is None:
            return values, [], ()
        if self.touched is not None:
            self.touched.update(dict.fromkeys(keys))
            return values, [], ()
        if watched and has_numpy:
            values = [owned_operand(value) for value in values]
        return values, keys, tuple(watched)

    def _resolved(self, stand_in: BoxTracer | ReadTracer) -> Any:
        with self.as_current():
            return stand_in.resolved()

    def under_parent(self) -> AbstractContextManager[None]:
        """Suspends recording in a ``with`` block, which runs under the JAX trace that encloses this tape.

        If that trace is eager, no tape sees the operations, so the block also runs without the token that keeps JAX's
        cached traces under tapes apart (`_jax.caches`).
        """
        return WithinTrace(self.parent, removes_token=self.eager)

    def as_current(self) -> AbstractContextManager[None]:
        """Makes this tape's trace the current JAX trace for a ``with`` block."""
        return WithinTrace(self)

    @contextmanager
    def noting_uses(self) -> Iterator[dict[Key, None]]:
        """Context manager that notes which tracked values its block uses, instead of recording operations."""
        before = self.touched
        touched: dict[Key, None] = {}
        try:
            self.touched = touched
            with self.as_current():
                yield touched
        finally:
            self.touched = before
            if before is not None:
                before.update(touched)


def run_under(trace: Trace, operation: Operation, values: Sequence[Any]) -> list[Any]:
    """Applies a differentiable operation to arrays under a given JAX trace (eager, recording or compiling).

    An eager trace runs it compiled, a tape records it, and any other trace inlines it into its program.
    """
    if isinstance(trace, TapeTrace):
        return trace.apply(operation, values)
    previous = current_trace()
    try:
        put_trace(trace)
        if is_eval(trace):
            return operation.jitted(*[payload_of(value) for value in values])
        return list((operation.jitted if is_eval_below(trace) else operation.function)(*values))
    finally:
        put_trace(previous)
