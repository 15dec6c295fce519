"""Names the variables that back NNX variables by their known path in the module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mirrored.extras import load
from mirrored.integrations.flax.holding import held
from mirrored.integrations.flax.keys import ReplicaKey
from mirrored.variables import Variable

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


def name_by_path(attribute: str, value: Any) -> None:
    """Names the variables of a new module attribute: ``kernel``, and ``inner/kernel`` in the enclosing module.

    Args:
        attribute: The attribute's name.
        value: The attribute: an NNX variable or a module. Other values are ignored.
    """
    for path, variable in _variables(value):
        content = held(variable)
        owner = content.variable if isinstance(content, ReplicaKey) else content
        if isinstance(owner, Variable):
            owner.name = "/".join([attribute, *map(str, path)])


def _variables(value: Any) -> Iterable[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, nnx.Variable):
        return [((), value)]
    if isinstance(value, nnx.Pytree):
        flat: Iterable[tuple[tuple[Any, ...], Any]] = nnx.to_flat_state(nnx.state(value))
        return flat
    return ()
