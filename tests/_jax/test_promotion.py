"""The library's own promotions do not depend on JAX's promotion setting."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest

from mirrored._jax.promotion import at_least_float32, promoted

DTYPES = ["bool", "int8", "uint32", "int64", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("setting", ["standard", "strict"])
def test_promotions_are_the_standard_ones(setting):
    pairs = list(itertools.product(DTYPES, DTYPES))
    with jax.enable_x64(True):
        expected = [jnp.promote_types(one, other) for one, other in pairs]
        with jax.numpy_dtype_promotion(setting):
            assert [promoted(one, other) for one, other in pairs] == expected
            wide = [str(at_least_float32(dtype)) for dtype in DTYPES]
    assert wide == ["float32"] * 7 + ["float64", "complex64", "complex128"]
