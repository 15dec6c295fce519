"""Names of the variables that NNX's live on: their paths, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mirrored.extras import load
from mirrored.integrations.flax.holding import held
from mirrored.integrations.flax.keys import ReplicaKey
from mirrored.variables import Variable

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


def name_by_path(attribute: str, value: Any) -> None:
    """Names what has become an attribute of a module: ``kernel``, and in the module around it ``inner/kernel``.

    Args:
        attribute: The attribute's name.
        value: A variable of NNX, a module, or anything else, which has no names.
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
