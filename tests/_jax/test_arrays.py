"""Probes of what `arrays` relies on in JAX: data of typed keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.arrays import (
    implementation_of,
    is_key,
    is_key_dtype,
    key_data,
)

# Typed keys


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_restored_from_their_data_and_the_name_in_their_dtype(implementation: str) -> None:
    keys = jax.random.split(jax.random.key(7, impl=implementation), 3)
    assert is_key(keys)
    assert is_key_dtype(keys.dtype)
    assert implementation_of(keys.dtype) == implementation
    data = key_data(keys)
    assert data.dtype == np.uint32
    again = jax.random.wrap_key_data(data, impl=implementation_of(keys.dtype))
    assert again.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.uniform(again[1]), jax.random.uniform(keys[1]))


def test_other_values_are_no_keys() -> None:
    array = jnp.ones(2, jnp.uint32)
    assert not is_key(array)
    assert not is_key(3)
    assert not is_key_dtype(array.dtype)
    assert key_data(array) is array
