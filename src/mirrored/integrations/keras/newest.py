"""The state that Keras' loops carry along, kept whatever interrupts them.

`fit`, `evaluate` and `predict` hand their state from step to step in local variables, and donate it to each step. An
exception between the dispatch of a step and the assignment of its results (Ctrl-C) would lose both: what the step was
given is deleted and its results are lost. So a compiled step leaves its results with the model in the C call that
dispatches it (see `mirrored._jax.dispatch`), and `jax_state_sync`, which Keras calls at the end, takes them from
there.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from itertools import starmap
from typing import Any, Final

import jax

from mirrored._jax.dispatch import Dispatch, consume
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.integrations.keras.global_state import keras_state
from mirrored.integrations.keras.storing import lose_deleted
from mirrored.runtime.ambient import ambient, entered
from mirrored.variables import Variable

GROUPS: Final = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
_NEWEST: Final = "_mirrored_newest"
# What the state of `fit`, of `evaluate` and of `predict` consists of.
_GROUPS_OF: Final = {4: GROUPS, 3: (*GROUPS[:2], GROUPS[3]), 2: GROUPS[:2]}
_JITTED: Final = type(jax.jit(lambda: None))


def kept_steps(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._make_function`, which is given the compiled step."""

    @functools.wraps(make)
    def making(self: Any, step_function: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(step_function, _JITTED) and strategy_of(self) is not None:
            step_function = _Step(step_function, vars(self).setdefault(_NEWEST, deque(maxlen=1)))
        return make(self, step_function, *args, **kwargs)

    return making


def kept_state(get_state: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._get_jax_state`: from here on the loop has the state, and the variables ask for it."""

    @functools.wraps(get_state)
    def getting(self: Any, **which: Any) -> Any:
        if strategy_of(self) is not None:
            # The state of an earlier loop: the variables may have been assigned since.
            self._jax_state = None
            vars(self).get(_NEWEST, deque()).clear()
        state = get_state(self, **which)
        if not which.get("purge_model_variables"):
            withhold(self, which)
        return state

    return getting


def kept_by_fit(purge: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Trainer._purge_model_variables`.

    Keras lets go of the values, which `fit` carries along. Here they stay in storage, but are those of before.
    """

    @functools.wraps(purge)
    def purging(self: Any, **which: Any) -> None:
        purge(self, **which)
        withhold(self, which)

    return purging


def withhold(model: Any, which: dict[str, Any]) -> None:
    """Has whoever uses a variable in the middle of a loop, or after one was interrupted, get its newest value."""

    def sync(variable: Variable) -> None:
        model.jax_state_sync()
        lose_deleted(variable)

    for group in GROUPS:
        for one in variables_of(model, group) if which.get(group) else ():
            if isinstance(getattr(one, "mirrored", None), Variable):
                one.mirrored.withhold(sync)


def newest_first(sync: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer.jax_state_sync`: what it assigns is the newest state, whatever Keras has noted of it."""

    @functools.wraps(sync)
    def syncing(self: Any) -> Any:
        newest = vars(self).get(_NEWEST)
        if newest:
            _, state = newest[0]
            self._jax_state = dict(zip(_GROUPS_OF[len(state)], state, strict=True))
            self._jax_state_synced = False
        result = sync(self)
        if newest:
            newest.clear()
        return result

    return syncing


def variables_of(model: Any, group: str) -> list[Any]:
    """Keras' variables in a part of the state."""
    if group == "optimizer_variables":
        return [] if getattr(model, "optimizer", None) is None else list(model.optimizer.variables)
    return list(getattr(model, group))


class _Step:
    """A compiled step whose results are with the model before Python can be interrupted.

    Args:
        jitted: The step, from (state, batch) to (logs, state).
        newest: Where the results are left.
    """

    def __init__(self, jitted: Any, newest: deque[Any]) -> None:
        self._dispatch = _Dispatch(jitted)
        self._newest = newest

    def __call__(self, state: Any, data: Any) -> Any:
        dispatch: Any = self._dispatch
        dispatch.job = None
        try:
            consume(map(self._newest.append, starmap(dispatch.function, ((state, data),))))
        except BaseException:
            dispatch.forget()
            raise
        job, dispatch.job = dispatch.job, None
        if job is not None and job.interruption is not None:
            raise job.interruption
        return self._newest[0]


class _Dispatch(Dispatch):
    """A step that is traced and compiled in the caller's thread, where it may be interrupted."""

    def __init__(self, jitted: Any) -> None:
        super().__init__(jitted)
        self._jitted = jitted

    def _miss(self, *args: Any, **kwargs: Any) -> Any:
        self._jitted.lower(*args, **kwargs).compile()  # nothing is donated; JAX keeps what it makes for the call below
        here, adopt = ambient(), keras_state()

        @contextlib.contextmanager
        def in_context() -> Iterator[None]:
            adopt()
            with entered(here):
                yield

        self._compiling = in_context
        return super()._miss(*args, **kwargs)
