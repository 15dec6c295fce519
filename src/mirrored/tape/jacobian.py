"""Jacobians: runs one backward pass per element of a target, vectorized or one after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mirrored.errors import ArgumentError, ArgumentTypeError
from mirrored.tape.record import Key
from mirrored.tape.structure import is_array, is_variable


def check_single(target: Any, called: str) -> None:
    """Checks that the target of a Jacobian is one array.

    Raises:
        ArgumentTypeError: It is not a single array.
    """
    if not (is_array(target) or is_variable(target)):
        raise ArgumentTypeError(
            called,
            found=f"the target is of type {type(target).__name__!r}",
            rule="the target of a Jacobian is one array",
            remedy="call it once per array (on a persistent tape), or stack the arrays into one",
        )


def check_batched(target: Any, source: Any, called: str) -> None:
    """Checks that a target and a source have batch dimensions of equal size.

    Raises:
        ArgumentError: A shape has fewer than two dimensions, or the first dimensions differ.
    """
    for name, shape in (("target", target.shape), ("source", source.shape)):
        if len(shape) < 2:
            raise ArgumentError(
                called,
                found=f"the {name} has shape {shape}: Shape {shape} must have rank at least 2",
                rule="target and source have a batch dimension and at least one other dimension",
                remedy="use jacobian, or add a dimension with x[:, None]",
            )
    if target.shape[0] != source.shape[0]:
        raise ArgumentError(
            called,
            found=f"the target has shape {target.shape}, the source {source.shape}",
            rule="Need first dimension of target shape and source shape to match",
            remedy="use jacobian if a row of the target depends on several rows of the source",
        )


def rows(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Returns one cotangent per element of a target, stacked along the first axis."""
    size = math.prod(shape)
    return jnp.reshape(jnp.eye(size, dtype=dtype), (size, *shape))


def batched_rows(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Returns one cotangent per element of an example, stacked. Each covers all examples at once."""
    size = math.prod(shape[1:])
    one = jnp.reshape(jnp.eye(size, dtype=dtype), (size, 1, *shape[1:]))
    return jnp.broadcast_to(one, (size, *shape))


def over_rows(pull: Callable[[Any], dict[Key, Any]], cotangents: Any, *, vectorized: bool) -> dict[Key, Any]:
    """Applies `pull` to each row and stacks the results.

    Args:
        pull: Maps a cotangent to the cotangents of the sources, by key.
        cotangents: The rows.
        vectorized: Whether `jax.vmap` computes all rows at once.

    Returns:
        For each key an array with an additional leading dimension.
    """
    if vectorized or cotangents.shape[0] == 0:
        found: dict[Key, Any] = jax.vmap(pull)(cotangents)
        return found
    pulled = [pull(row) for row in cotangents]
    return {key: jnp.stack([one[key] for one in pulled]) for key in pulled[0]}
