"""Typed PRNG keys, which NumPy cannot hold, and their data, which it can."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def is_key(value: Any) -> bool:
    """Whether a value is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def is_key_dtype(dtype: Any) -> bool:
    """Whether a dtype is one of typed PRNG keys."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def implementation_of(dtype: Any) -> str:
    """The name of the implementation of typed PRNG keys, by which they can be made of their data: ``threefry2x32``.

    `jax.random.key_impl` wants the keys themselves, which a variable may have lost to a step that failed.
    """
    return str(dtype._impl.name)


def key_data(value: Any) -> Any:
    """The data of typed PRNG keys; anything else as it is."""
    return jax.random.key_data(value) if is_key(value) else value
