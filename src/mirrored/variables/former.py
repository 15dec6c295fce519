"""Old values of variables, saved until their asynchronously computed new values are available.

JAX dispatches asynchronously: variables have their new values before these are computed, and an error becomes known
where a value is used. Two kinds of code therefore record the arrays that they replace:

- A compiled step that donates no buffers (`function(donate=False)`). The record costs no memory while the step runs,
  because the step reads these arrays. (A step that donates its buffers has no old values to keep.)
- Eager code: `assign`, optimizers, `Strategy.run`. It records only values that are not computed yet at the assignment.

A record is dropped when a later one, or a read of a variable, finds its values computed.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from mirrored._blocks import acquiring
from mirrored._jax import distributed
from mirrored._jax.arrays import is_ready
from mirrored._jax.traces import Tracer
from mirrored.variables.state_lock import lock, on_assignment, state, store_all

# More steps than are ever in flight (`compilation.dispatch.LIMIT`): above this number, finished ones are sought.
_MANY_STEPS: Final = 64
# Assignments beyond this number, none of them computed, are not undone. It bounds the memory.
_MOST_STEPS: Final = 1024


class _Step(NamedTuple):
    """A record of one step or assignment: its variables, their old and new values, and arrays that signal its success.

    Attributes:
        variables: The variables that it assigns.
        before: Their old values.
        after: Their new values.
        tokens: Its results that are not donated. One is sufficient for a compiled step, which is one computation.
        waits: Whether `restore_failed` may wait for it.
    """

    variables: list[weakref.ref[Any]]
    before: list[Any]
    after: list[Any]
    tokens: Sequence[Any]
    waits: bool


_steps: Final[deque[_Step]] = deque(maxlen=_MOST_STEPS)
_forget: Final[list[Callable[[], object]]] = []
distributed.on_leave(_steps.clear)


def on_restored(forget: Callable[[], object]) -> None:
    """Registers a function to be called after `restore_failed` has undone failed steps."""
    _forget.append(forget)


def note_step(variables: Sequence[Any], after: Sequence[Any], token: Any, *, waits: bool) -> None:
    """Saves the variables' current values until a step has computed their new values.

    The step has been dispatched, and its results are about to replace the current values.

    Args:
        variables: The variables that the step assigns.
        after: Their new values.
        token: A result of the step that is not donated.
        waits: Whether `restore_failed` may wait for the step. Otherwise it counts as failed while it runs: a collective
            with a lost worker may never end.
    """
    _note(variables, after, (token,), waits)


def _note(variables: Sequence[Any], after: Sequence[Any], tokens: Sequence[Any], waits: bool) -> None:
    _drop_computed()
    before = [variable._array for variable in variables]
    _steps.append(_Step([*map(weakref.ref, variables)], before, list(after[: len(before)]), tokens, waits))


def note_assignment(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Saves the variables' current values until their new values have been computed.

    Eager code is about to assign the new values. Nothing is saved if they have been computed already.

    Args:
        variables: The variables.
        values: Their new values.

    Raises:
        RuntimeError: The computation of a new value has failed.
    """
    try:
        pending = [value for value in values if _is_pending(value)]
    except RuntimeError:
        restore_failed()  # earlier assignments may have stored results of the same computation
        raise
    if pending:
        assignments = [getattr(variable, "device_assignment", None) for variable in variables]
        _note(variables, values, pending, not any(one is not None and one.spans_processes for one in assignments))


on_assignment(note_assignment)


def _is_pending(value: Any) -> bool:
    """Returns whether an array is not computed yet; raises the error of a computation that has failed."""
    if isinstance(value, Tracer) or not hasattr(value, "is_ready") or value.is_deleted():
        return False  # `VariableStorage.lose` marks variables that are assigned deleted arrays
    if not value.is_ready():
        return True
    value.block_until_ready()
    return False


def forget_computed() -> None:
    """Discards saved old values of variables whose new values have been computed.

    It starts with the oldest step or assignment. Readers call it. They do not wait for a thread that replaces values;
    the next reader or assignment drops them.
    """
    if _steps:
        with acquiring(lock, 0.0) as is_held:
            if is_held:
                _drop_computed()


def _drop_computed() -> None:
    while _steps and _has_succeeded(_steps[0]):
        _steps.popleft()
    if len(_steps) >= _MANY_STEPS:
        kept = [step for step in list(_steps) if not _has_succeeded(step)]
        _steps.clear()
        _steps.extend(kept)


def restore_failed() -> bool:
    """Undoes the variable assignments of failed steps.

    The variables get the values from before the first failed step. A step that has read values of a failed step has
    failed, too. A variable that has been assigned otherwise since then keeps that value.

    Returns:
        Whether a recorded step has failed.
    """
    if not _steps:
        return False
    with lock:
        if state.step is not None:
            state.step.finish()
        failed = [step for step in list(_steps) if any(has_failed(token, step.waits) for token in step.tokens)]
        values: dict[int, tuple[Any, Any]] = {}
        for step in reversed(failed):
            for reference, before, after in zip(step.variables, step.before, step.after, strict=True):
                variable = reference()
                if variable is None:
                    continue
                _, current = values.get(id(variable), (variable, variable._array))
                if current is after:
                    values[id(variable)] = variable, before
        for variable, _ in values.values():
            variable.mark_shared()  # other code may hold the old value
        store_all([variable for variable, _ in values.values()], [value for _, value in values.values()])
        _steps.clear()
    if failed:
        for forget in _forget:
            forget()
    return bool(failed)


def has_failed(array: Any, waits: bool) -> bool:
    """Returns whether the step that was to compute an array has failed.

    Args:
        array: The array.
        waits: Whether to wait for the step. Otherwise it counts as failed while it runs.
    """
    try:
        if not waits and not is_ready(array):
            return True
        array.block_until_ready()
    except RuntimeError:
        return not array.is_deleted()  # another thread has donated it, so its variable has a newer value
    return False


def _has_succeeded(step: _Step) -> bool:
    return all(map(_is_computed, step.tokens))


def _is_computed(token: Any) -> bool:
    try:
        if not is_ready(token):
            return False
        token.block_until_ready()
    except RuntimeError:
        return bool(token.is_deleted())
    return True
