"""Connecting NNX: variables, optimizer, and what counts as another trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from mirrored._jax.traces import current_trace, recording_parent
from mirrored.checkpoint.deferred import is_expected, state_came
from mirrored.extras import load
from mirrored.integrations.flax.holding import adopt, held, is_ours, value_of
from mirrored.integrations.flax.levels import below_tapes, renew
from mirrored.integrations.flax.naming import name_by_path
from mirrored.integrations.flax.optimizers import connect_optimizer
from mirrored.integrations.flax.variables import connect_variables
from mirrored.patches import is_applied, replace, undo
from mirrored.runtime.ambient import ambient

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


def connect() -> None:
    """Connects NNX: changes what `mirrored/patches.py` lists. More than once does nothing."""
    if is_applied("flax"):
        return
    connect_variables()
    connect_optimizer()
    replace("flax", nnx.tracers, "current_jax_trace", below_tapes(nnx.tracers.current_jax_trace))
    pytree = nnx.Pytree
    replace("flax", pytree, "_setattr", _checked(pytree._setattr, pytree._check_valid_context))
    replace("flax", pytree, "_check_valid_context", _staging(pytree._check_valid_context))


def disconnect() -> None:
    """Puts NNX back as it was. Modules of a strategy that were made before must not be used afterwards."""
    undo("flax")


def _staging(check: Callable[..., None]) -> Callable[..., None]:
    """A module may be taken apart in the trace of a compiled function, too: there its variables stage what they get."""

    @functools.wraps(check)
    def staging(self: Any, message: Callable[[], str]) -> None:
        store = ambient().store
        if store is None or not store.captures or recording_parent(current_trace()) is not store.base_trace:
            renew(self)
            check(self, message)

    return staging


def _checked(set_attribute: Callable[..., None], check: Callable[..., None]) -> Callable[..., None]:
    """Attributes are another matter: one set in a trace would be set once, when the function is traced."""

    @functools.wraps(set_attribute)
    def checked(self: Any, name: str, value: Any) -> None:
        renew(self)
        check(self, lambda: f"Cannot mutate '{type(self).__name__}' from different trace level")
        set_attribute(self, name, value)
        if ambient().strategies:
            name_by_path(name, value)
        if is_expected():
            state_came(value)

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
        # Merging takes the variables of the state as they are.
        return nnx.merge(graph, jax.tree.map(_plain, state, is_leaf=lambda one: isinstance(one, nnx.Variable)))


def _plain(variable: Any) -> Any:
    """A variable of its own, with the value that this one has here."""
    if not isinstance(variable, nnx.Variable):
        return variable
    content = held(variable)
    return type(variable)._new(value_of(content) if is_ours(content) else content, variable.get_metadata())


def is_mirrored(variable: Any) -> bool:
    """Whether an NNX variable lives on a variable of ours."""
    return is_ours(held(variable))


BRIDGE = NNXBridge()
