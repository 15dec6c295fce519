"""Connecting NNX: variables, optimizer, and what counts as another trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored._jax.traces import current_trace, put_trace, recording_parent, swap_trace
from mirrored.extras import load
from mirrored.integrations.flax.holding import adopt, held, is_ours
from mirrored.integrations.flax.optimizers import connect_optimizer
from mirrored.integrations.flax.variables import connect_variables
from mirrored.replicas.ambient import ambient

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


class _Connected:
    done = False


def connect() -> None:
    """Connects NNX; more than once does nothing."""
    if _Connected.done:
        return
    _Connected.done = True
    connect_variables()
    connect_optimizer()
    nnx.tracers.current_jax_trace = _below_tapes(nnx.tracers.current_jax_trace)
    pytree = nnx.Pytree
    pytree._setattr = _checked(pytree._setattr, pytree._check_valid_context)
    pytree._check_valid_context = _staging(pytree._check_valid_context)


def _below_tapes(trace_state: Callable[[], Any]) -> Callable[[], Any]:
    """NNX's idea of where it is, which a tape does not change: a tape watches what runs anyway."""

    @functools.wraps(trace_state)
    def below_tapes() -> Any:
        trace = current_trace()
        parent = recording_parent(trace)
        if parent is trace or parent is None:
            return trace_state()
        swap_trace(parent)
        try:
            return trace_state()
        finally:
            put_trace(trace)

    return below_tapes


def _staging(check: Callable[..., None]) -> Callable[..., None]:
    """A module may be taken apart in the trace of a compiled function, too: there its variables stage what they get."""

    @functools.wraps(check)
    def staging(self: Any, message: Callable[[], str]) -> None:
        frame = ambient().frame
        if frame is None or not frame.captures or recording_parent(current_trace()) is not frame.base_trace:
            check(self, message)

    return staging


def _checked(set_attribute: Callable[..., None], check: Callable[..., None]) -> Callable[..., None]:
    """Attributes are another matter: one set in a trace would be set once, when the function is traced."""

    @functools.wraps(set_attribute)
    def checked(self: Any, name: str, value: Any) -> None:
        check(self, lambda: f"Cannot mutate '{type(self).__name__}' from different trace level")
        set_attribute(self, name, value)

    return checked


class NNXBridge:
    """What `mirror` does with NNX modules, optimizers and states: their variables move onto ours, in place."""

    def is_whole(self, value: Any) -> bool:
        """Whether it is an object of NNX."""
        return isinstance(value, (nnx.Pytree, nnx.Variable, nnx.State))

    def mirror(self, value: Any, path: str) -> Any:
        """The object itself, all of its variables on ours."""
        for where, variable in nnx.to_flat_state(nnx.state(value)):
            adopt(variable, "/".join(map(str, ([path] if path else []) + list(where))))
        return value

    def unmirror(self, value: Any) -> Any:
        """A copy of the object with values of its own."""
        graph, state = nnx.split(value)
        return nnx.merge(graph, state)


def is_mirrored(variable: Any) -> bool:
    """Whether an NNX variable lives on a variable of ours."""
    return is_ours(held(variable))


BRIDGE = NNXBridge()
