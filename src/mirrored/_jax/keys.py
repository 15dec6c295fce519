"""Typed PRNG keys, which NumPy cannot hold, and their data, which it can."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def is_key(value: Any) -> bool:
    """Whether a value is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def key_data(value: Any) -> Any:
    """The data of typed PRNG keys; anything else as it is."""
    return jax.random.key_data(value) if is_key(value) else value
