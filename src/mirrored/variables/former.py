"""The old values of variables that a step has replaced, kept until the step has succeeded (`function(donate=False)`).

JAX dispatches asynchronously: the variables have their new values before these are computed, and an error becomes known
where a value is used. A step that donates no buffers therefore records the arrays that it replaces. The record costs no
memory while the step runs, because the step reads these arrays; it is dropped when the next one finds it finished.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from mirrored._jax import distributed
from mirrored.variables.state_lock import lock, state, store_all

# More steps than are ever in flight (`compilation.dispatch.LIMIT`); without their records variables would be lost.
_MOST_STEPS: Final = 64


class _Step(NamedTuple):
    """One step: its variables with their old and new values, and one of its results."""

    variables: list[weakref.ref[Any]]
    before: list[Any]
    after: list[Any]
    token: Any
    waits: bool


_steps: Final[deque[_Step]] = deque(maxlen=_MOST_STEPS)
_forget: Final[list[Callable[[], object]]] = []
distributed.on_leave(_steps.clear)


def on_restored(forget: Callable[[], object]) -> None:
    """Registers a function that is called after failed steps were undone."""
    _forget.append(forget)


def note_step(variables: Sequence[Any], after: Sequence[Any], token: Any, *, waits: bool) -> None:
    """Records the current values of variables, before the results of a dispatched step replace them.

    Args:
        variables: The variables that the step assigns.
        after: Their new values.
        token: A result of the step that is not donated.
        waits: Whether `restore_failed` may wait for the step. Otherwise it counts as failed while it runs: a collective
            with a lost worker may never end.
    """
    while _steps and _has_succeeded(_steps[0].token):
        _steps.popleft()
    before = [variable._array for variable in variables]
    _steps.append(_Step([*map(weakref.ref, variables)], before, list(after[: len(before)]), token, waits))


def restore_failed() -> bool:
    """Gives the variables of failed steps the values that they had before the first of these steps.

    A step that has read values of a failed step has failed, too. A variable that has been assigned otherwise since then
    keeps that value.

    Returns:
        Whether a recorded step has failed.
    """
    if not _steps:
        return False
    with lock:
        if state.step is not None:
            state.step.finish()
        failed = [one for one in list(_steps) if has_failed(one.token, one.waits)]
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
        if not waits and not array.is_ready():
            return True
        array.block_until_ready()
    except RuntimeError:
        return not array.is_deleted()  # another thread has donated it, so its variable has a newer value
    return False


def _has_succeeded(token: Any) -> bool:
    try:
        if not token.is_ready():
            return False
        token.block_until_ready()
    except RuntimeError:
        return bool(token.is_deleted())
    return True
