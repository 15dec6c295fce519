"""`equinox.nn.State`, which holds batch statistics: one component per replica, the mean when read outside `run`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mirrored.extras import load
from mirrored.integrations.trees import belongs_here, is_array, named, statistic_of, value_to_move, variable_of
from mirrored.variables import Variable

equinox = load("equinox", called="mirrored.integrations.equinox", extra="equinox")


class EquinoxBridge:
    """What `mirror` does with the objects of Equinox that hold state."""

    def is_whole(self, value: Any) -> bool:
        """Whether it is a state; modules are ordinary pytrees."""
        return isinstance(value, equinox.nn.State)

    def mirror(self, value: Any, path: str) -> Any:
        """A state of the same structure over variables."""

        def on_variable(where: Any, leaf: Any) -> Any:
            name = named((*where,), "state") if not path else f"{path}/{named(where)}"
            return _statistic(leaf, name)

        return jax.tree_util.tree_map_with_path(on_variable, value, is_leaf=_is_variable)

    def unmirror(self, value: Any) -> Any:
        """A state of arrays."""
        return jax.tree.map(lambda leaf: leaf.read_value() if _is_variable(leaf) else leaf, value, is_leaf=_is_variable)


def _statistic(leaf: Any, name: str) -> Any:
    if _is_variable(leaf):
        if belongs_here(leaf):
            return leaf
        leaf, name = value_to_move(leaf), leaf.name
    if not is_array(leaf):
        return leaf
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return statistic_of(leaf, name) if floating else variable_of(leaf, name)


def _is_variable(value: Any) -> bool:
    return isinstance(value, Variable)


BRIDGE = EquinoxBridge()
