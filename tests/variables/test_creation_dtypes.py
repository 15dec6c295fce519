"""Dtypes of new variables that JAX does not have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


@pytest.mark.parametrize("value", [0, [1, 2]], ids=["number", "list"])
def test_a_dtype_of_64_bits_without_x64_is_warned_of_at_the_users_line(value):
    with pytest.warns(UserWarning, match="JAX has no int64 without its x64 mode") as caught:
        variable = mr.Variable(value, dtype=np.int64)
    assert variable.dtype == jnp.int32
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(("dtype", "value"), [("float64", 1 / 3), ("int64", 2**40 + 1)])
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.parametrize("is_weak", [False, True])
def test_an_initial_array_of_64_bits_keeps_its_width(is_weak, in_scope, synchronization, dtype, value):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4) if in_scope else mr.get_strategy()
    with jax.enable_x64(True):
        array = jnp.full(3, value, None if is_weak else dtype)
    assert array.weak_type == is_weak
    with strategy.scope():
        v = mr.Variable(array, synchronization=synchronization, aggregation="ONLY_FIRST_REPLICA")
    assert v.dtype == v.stored_value().dtype == dtype
    assert v.numpy().tolist() == [value] * 3
