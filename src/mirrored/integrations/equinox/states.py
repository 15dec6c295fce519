"""Converts the arrays of `equinox.nn.State`, which holds batch statistics, to `mirrored` variables.

A statistic has one component per replica. Reading it outside `run` returns the mean.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mirrored._typing import Leaf, PyTree
from mirrored.extras import load
from mirrored.integrations.trees import belongs_here, is_array, moved, named, statistic_of, variable_of
from mirrored.variables import Variable

equinox = load("equinox", called="mirrored.integrations.equinox", extra="equinox")


class EquinoxBridge:
    """The adapter by which `mirror` and `unmirror` convert an `equinox.nn.State` to variables and back."""

    def converts(self, value: object) -> bool:
        """Returns whether `value` is an `equinox.nn.State`.

        Equinox modules are ordinary pytrees, which `mirror` converts leaf by leaf.
        """
        return isinstance(value, equinox.nn.State)

    def mirror(self, value: PyTree, path: str) -> Any:
        """Returns a copy of an `equinox.nn.State` with `mirrored` variables in place of its arrays."""

        def on_variable(where: tuple[Any, ...], leaf: Leaf) -> Any:
            name = named((*where,), "state") if not path else f"{path}/{named(where)}"
            return _statistic(leaf, name)

        return jax.tree_util.tree_map_with_path(on_variable, value, is_leaf=_is_variable)

    def unmirror(self, values: list[Any]) -> list[Any]:
        """Returns a copy of each `equinox.nn.State` in `values`, with arrays in place of its `mirrored` variables."""
        read = lambda leaf: leaf.read_value() if _is_variable(leaf) else leaf  # noqa: E731
        return [jax.tree.map(read, value, is_leaf=_is_variable) for value in values]

    def assignment_target(self, value: object) -> None:
        """Returns None, because no single variable stores the content of an `equinox.nn.State`."""


def _statistic(leaf: Leaf, name: str) -> Any:
    if _is_variable(leaf):
        return leaf if belongs_here(leaf) else moved(leaf)
    if not is_array(leaf):
        return leaf
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return statistic_of(leaf, name) if floating else variable_of(leaf, name)


def _is_variable(value: object) -> bool:
    return isinstance(value, Variable)


BRIDGE = EquinoxBridge()
