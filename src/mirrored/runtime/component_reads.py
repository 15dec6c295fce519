"""Announces reads of all components of a sync-on-read variable, so that a tape's gradients flow to the variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mirrored.runtime.ambient import ReadableVariable, announce_read


@jax.custom_jvp
def components_of(stacked: jax.Array, one: jax.Array) -> Any:
    """Returns a sync-on-read variable's stacked components; the gradients flow to the argument `one` instead.

    The gradient with respect to such a variable is the sum of those with respect to its components.
    """
    return stacked


@components_of.defjvp
def _components_of_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return primals[0], jnp.broadcast_to(tangents[1], primals[0].shape)


def announced_components(variable: ReadableVariable, stacked: jax.Array) -> Any:
    """Notifies tapes that a sync-on-read variable is read, and returns the stacked components of all replicas."""
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        return stacked
    return components_of(stacked, announce_read(variable, jax.lax.stop_gradient(stacked[0])))
