"""`Recording`: the base class of `GradientTape`, with the ``with`` block and the methods for watching."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp

from mirrored._jax import caches
from mirrored._jax.boxes import STAND_INS, ReadTracer
from mirrored._jax.jaxprs import aval_of
from mirrored._jax.traces import (
    Trace,
    current_trace,
    is_outermost_staging,
    is_staging,
    is_staging_above,
    parent_of,
    put_trace,
    restore_thread_state,
    thread_state,
)
from mirrored._typing import Leaf, PyTree
from mirrored.errors import ArgumentError, TapeError
from mirrored.runtime.ambient import ReadableVariable, ambient, listen, thread, unlisten
from mirrored.runtime.overlay_store import check_read_in_merge, has_traced_value
from mirrored.tape.backward import (
    announced,
    is_array,
    is_variable,
    tape_leaves,
    whole_variable,
)
from mirrored.tape.operation import is_deriving
from mirrored.tape.record import Recorder
from mirrored.tape.trace import TapeTrace

_log = logging.getLogger("mirrored.tape")


class Recording:
    """Base class of `GradientTape` with the ``with`` block, `watch`, `reset` and `stop_recording`.

    Args:
        persistent: Whether gradients can be computed several times.
        watch_accessed_variables: Whether reading a trainable variable watches it.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._trace = TapeTrace()
        self._recorder = Recorder(persistent, watch_accessed_variables)
        self._entered = False
        self._used = False
        self._replica: object = None  # in which the tape was opened

    # The block

    def __enter__(self) -> Self:
        """Starts recording. A tape that is entered again adds to its earlier records, or starts anew after a gradient.

        Raises:
            ArgumentError: The tape is already recording.
        """
        if self._entered:
            raise ArgumentError(
                "GradientTape.__enter__",
                found="Tape is still recording, This can happen if you try to re-enter an already-active tape.",
                rule="only one `with` block at a time can use a tape; it can be entered again after that block",
                remedy="use a second GradientTape for the inner block",
            )
        if self._used:  # The gradient has freed the records: it ended that recording, and another one begins.
            self._used = False
            self._recorder = Recorder(self._persistent, self._recorder.watch_accessed_variables)
        context, state = thread.current, thread_state()
        self._replica = ambient().replica
        try:
            self._entered = True
            self._start()
            return self
        except BaseException:  # an interrupt, such as Ctrl-C: the block does not run, so that nothing would end it
            self._entered = False
            self._trace.leave()
            thread.current = context
            restore_thread_state(state)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stops recording. The records are kept, even if an exception ended the block."""
        try:
            self._entered = False
            # Also if it records no more: a function that raised after `gradient` had stopped the tape has restored the
            # trace and the listeners from before its call (`restoring`).
            self._stop()
        except BaseException:  # an interrupt, such as Ctrl-C
            self._entered = False
            self._stop()
            raise

    def _start(self) -> None:
        above = self._traces_above()
        if above is not None:
            # A tape that was opened inside this one is still open: this trace keeps its parent and its place below.
            self._trace.recorder = self._recorder
            inner = (one for one in ambient().listeners if isinstance(one, Recording) and one._trace in above)
            listen(self, before=next(inner, None))
            caches.renew_if_read()
            return
        # JAX includes the current token of `_jax.caches` in the keys of its tracing caches, so a helper that was traced
        # outside the tape is not reused in it. All eager tapes of a thread share a token, so a new tape does not cause
        # retraces.
        self._trace.enter(current_trace(), caches.current(), self._recorder)
        put_trace(self._trace)
        if self._trace.eager and self._trace.outer_token is None:
            caches.put(caches.tape_token())
        caches.enter_tape()
        listen(self)

    def _traces_above(self) -> list[Any] | None:
        """Returns the JAX traces nested in this tape's trace, innermost first; None if the tape's trace is inactive."""
        above, trace = [], current_trace()
        while trace is not None and trace is not self._trace:
            above.append(trace)
            trace = parent_of(trace)
        return None if trace is None else above

    def _stop(self) -> None:
        unlisten(self)
        self._trace.leave()
        if current_trace() is self._trace:
            # Tapes may be closed in another order than they were opened. Traces that no longer record are skipped.
            parent, token = self._trace.parent, self._trace.outer_token
            while isinstance(parent, TapeTrace) and parent.recorder is None:
                parent, token = parent.parent, parent.outer_token
            caches.leave_tape(token)
            put_trace(parent)  # last: after an interrupt, `_stop` is called again, while this trace is current
        else:
            caches.renew_if_read()

    def stop_recording(self) -> AbstractContextManager[None]:
        """Pauses recording during a ``with`` block, so that no gradient flows through the block's operations.

        Raises:
            TapeError: The tape is not recording. Or the call is in a function that JAX traces (``jit``, ``scan``, ...),
                or in the function given to `Strategy.run`, and the tape was opened outside of it.

        Example:
            >>> x = jnp.array(3.0)
            >>> import mirrored as mr
            >>> with mr.GradientTape() as tape:
            ...     tape.watch(x)
            ...     y = x * x
            ...     with tape.stop_recording():
            ...         scale = 1.0 / y
            ...     z = y * scale
            >>> round(float(tape.gradient(z, x)), 4)
            0.6667

        TensorFlow: the same; a call in a `tf.function` inside the tape's block is ignored there.
        """
        return _Paused(self)

    def _refuse_inner(self, called: str) -> None:
        """Raises an error in a traced function or a replica function that is inside the tape's block.

        The tape records such a traced function as one operation, so that a pause in it would have no effect. The
        replicas of an eager run share the tape: a pause of one replica would be a pause of the others, too.
        """
        in_replica = ambient().replica is not self._replica
        if not in_replica and is_staging_above(current_trace(), self._trace) is False:
            return
        raise TapeError(
            called,
            found=f"the tape was opened outside of the {'replica' if in_replica else 'traced'} function with the call",
            rule="a tape records a function of jit, scan, cond, checkpoint or mirrored.function as one operation, and "
            "all replicas of a run share a tape around it, so that such a function cannot change what the tape records",
            remedy="apply jax.lax.stop_gradient to the values, or open the tape inside the function",
        )

    def reset(self) -> None:
        """Discards everything that the tape has recorded and watched, and continues recording.

        Raises:
            ArgumentError: The tape is not recording.
            TapeError: The call is in a traced function or a replica function, and the tape was opened outside of it.

        TensorFlow: the same.
        """
        if self._trace.recorder is None:
            raise ArgumentError(
                "GradientTape.reset",
                found="Tape is not recording.",
                rule="reset can be called only inside the tape's block",
                remedy="create a new tape, or call reset() before the block ends",
            )
        self._refuse_inner("GradientTape.reset")
        self._recorder = self._trace.recorder = Recorder(self._persistent, self._recorder.watch_accessed_variables)
        caches.renew_if_read()

    # Watching

    def watch(self, tensor: PyTree) -> None:
        """Starts tracking arrays or variables, so that gradients with respect to them can be computed.

        The tape tracks the object itself, by identity. Compute with this object, not with a copy. A function passed to
        `jit` or `lax.scan` may also close over it.

        Args:
            tensor: A `jax.Array`, a variable, or a structure of them. Integers and booleans have no gradient; they are
                accepted with a warning.

        Raises:
            ArgumentError: A leaf is neither a `jax.Array` nor a variable. NumPy arrays and numbers cannot be watched,
                because JAX does not preserve their identity.
            TapeError: A leaf is the copy of one of several replicas, an element of `Variable.values`.

        TensorFlow: the same.
        """
        for leaf in tape_leaves(tensor):
            if not (is_variable(leaf) or is_array(leaf)):
                raise ArgumentError(
                    "GradientTape.watch",
                    found=f"Passed in object {leaf!r} of type {type(leaf).__name__!r}",
                    rule="a tape can watch only jax.Array objects and variables",
                    remedy="convert it with jnp.asarray first, and compute with that array",
                )
            self._watch(whole_variable(leaf, "GradientTape.watch"))

    def _watch(self, leaf: Leaf) -> None:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            _log.warning("The dtype of the watched tensor must be floating (e.g. float32), got %s", leaf.dtype)
        elif is_variable(leaf):
            self._recorder.watch_variable(announced(leaf))
            caches.renew_if_read()
        else:
            self._recorder.watch(leaf, self._trace)

    def watched_variables(self) -> tuple[Any, ...]:
        """Returns the variables that the tape has watched since its creation or reset, in order of their creation.

        TensorFlow: the same.
        """
        watched = (variable for _, variable in self._recorder.variables.values())
        return tuple(sorted(watched, key=lambda variable: variable.serial))

    # Callbacks of variable reads and writes (see mirrored.runtime.ambient)

    def on_read(self, variable: ReadableVariable, value: jax.Array) -> Any:
        """Returns the value of a read of `variable`; if the variable is watched, records the read and tracks the value.

        JAX may keep the jaxpr of a nested function that is traced under an eager tape, and reuse it in later calls. The
        read then returns a `ReadTracer`, which each call resolves to the current value of the variable.
        """
        if type(value) in STAND_INS and not self._is_staged():
            return value  # each call of the function resolves it under this tape, too
        recorder = self._trace.recorder
        staging = is_staging_above(current_trace(), self._trace)
        if staging is None and recorder is not None:
            staging = self._is_traced_for_later()
        if staging and has_traced_value(variable):
            check_read_in_merge(variable)
            return value  # its gradients flow to the value from before (`RecomputingStore`)
        if staging and self._trace.eager:
            return ReadTracer(variable, aval_of(value))
        if staging is not False:
            check_read_in_merge(variable)
        if recorder is None or staging is None:
            return value
        if recorder.watches(variable):
            return recorder.read(variable, value, self._trace, is_nested=bool(staging))
        return recorder.untracked(value, self._trace)

    def _is_staged(self) -> bool:
        """Returns whether JAX is tracing the function that has opened this tape."""
        return any(is_staging(trace) for trace in _with_parents(self._trace.parent))

    def _is_traced_for_later(self) -> bool | None:
        """Returns whether JAX is tracing a function that it will cache and call outside of this tape's trace.

        This is the case for the bodies of `shard_map` and `custom_vjp`. It is also the case for derivative rules, which
        JAX traces when the call is differentiated, and caches.

        None means that the read does not concern this tape: the read returns the value as it is.
        """
        if is_deriving():
            return True if self._trace.eager else None
        # Code that suspends the tape on purpose resets the token of an eager tape, and computes in the trace that
        # encloses any other.
        trace = current_trace()
        return (
            True
            if caches.current() is not None and is_outermost_staging(trace) and not self._shares_staging_trace(trace)
            else None
        )

    def _shares_staging_trace(self, trace: Trace | None) -> bool:
        """Returns whether `trace` and this tape are inside the same trace that builds a jaxpr.

        `trace` can be that trace itself.
        """
        own = list(_with_parents(self._trace.parent))
        return any(one is other for one in _with_parents(trace) if is_staging(one) for other in own)

    def on_write(self, variables: Sequence[ReadableVariable]) -> None:
        """Makes gradients of later reads flow to the variables that are about to be assigned.

        They no longer flow to values assigned earlier, which `on_reassign` has recorded. The tape keeps the values that
        were read before.
        """
        if self._recorder.reassigned:
            for variable in variables:
                self._recorder.reassign(variable, None, self._trace)

    def on_reassign(self, variable: ReadableVariable, value: object) -> None:
        """Records an assignment by Flax NNX: if `value` is tracked, gradients of later reads flow to `value`.

        Flax NNX differentiates assignments. If `value` is None, the assignment has no derivative.
        """
        if self._trace.recorder is not None:
            self._recorder.reassign(variable, value, self._trace)

    def tracks(self, value: object) -> bool:
        """Returns whether the tape tracks the array `value`, i.e. records operations on the array.

        It is called before a per-replica value is split into its components.
        """
        return self._trace.recorder is not None and self._recorder.key_of(value, self._trace) is not None


class _Paused(ContextDecorator):
    """Context manager that pauses the recording of a tape (`stop_recording`).

    It is not a generator function, which would not resume the tape if an interrupt came while the block is entered.
    """

    def __init__(self, tape: Recording) -> None:
        self._tape = tape

    def __enter__(self) -> None:
        tape = self._tape
        if tape._trace.recorder is None:
            raise TapeError(
                "GradientTape.stop_recording",
                found="Trying to stop recording a tape which is not recording.",
                rule="stop_recording can be called only inside the tape's block, while it records",
                remedy="remove the call: outside its block, a tape does not record",
            )
        tape._refuse_inner("GradientTape.stop_recording")
        context, state, recorder = thread.current, thread_state(), tape._trace.recorder
        try:
            tape._stop()
            # A variable whose value is tracked may get another one in the block, which has no derivative (`on_write`).
            if tape._recorder.reassigned:
                listen(tape)
        except BaseException:  # an interrupt, such as Ctrl-C: the block does not run, so that nothing would end it
            tape._trace.recorder = recorder
            thread.current = context
            restore_thread_state(state)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._resume()
        except BaseException:  # an interrupt, such as Ctrl-C
            self._tape._stop()
            self._resume()
            raise

    def _resume(self) -> None:
        if self._tape in ambient().listeners:
            unlisten(self._tape)
        if self._tape._entered:
            self._tape._start()


def _with_parents(trace: Trace | None) -> Iterator[Trace]:
    """Yields a JAX trace and the traces in which it is nested, innermost first."""
    while trace is not None:
        yield trace
        trace = parent_of(trace)
