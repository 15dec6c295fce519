"""Converts typed PRNG keys, which NumPy cannot represent, to their data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def is_key(value: Any) -> bool:
    """Returns whether a value is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def is_key_dtype(dtype: Any) -> bool:
    """Returns whether a dtype is one of typed PRNG keys."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def implementation_of(dtype: Any) -> str:
    """Returns the name of the implementation of typed PRNG keys, such as ``threefry2x32``, to restore them from data.

    `jax.random.key_impl` needs the keys themselves, which a variable may have lost in a failed step.
    """
    return str(dtype._impl.name)


def key_data(value: Any) -> Any:
    """Returns the data of typed PRNG keys; other values unchanged."""
    return jax.random.key_data(value) if is_key(value) else value
