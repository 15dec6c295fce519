"""Dtypes of new variables that JAX does not have."""

from __future__ import annotations

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
