"""Float32 numbers are rounded as NumPy rounds them, also below the normal numbers and at the ends of the range."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.rounding import rounded_to

DTYPES = [jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2]


def numbers(dtype: type) -> np.ndarray:
    """All numbers of the dtype, those half way between two of them, and the neighbours of these."""
    with np.errstate(invalid="ignore", over="ignore"):
        bits = jnp.finfo(dtype).bits
        found = np.arange(2**bits).astype(f"uint{bits}").view(dtype).astype(np.float32)
        found = np.unique(found[np.isfinite(found)])
        found = np.concatenate([found, (found[1:] + found[:-1]) / 2, found[[0, -1]] * 1.05, found[[0, -1]] * 4])
        near = [np.nextafter(found, np.float32(way)) for way in (-np.inf, np.inf)]
    everything = np.concatenate([found, *near, np.float32([-0.0, np.inf, -np.inf, np.nan])])
    return everything[(np.abs(everything) > 1e-30) | (everything == 0)]  # XLA for CPU has no denormals of float32


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_to_the_nearest(dtype, compiled):
    array = numbers(dtype)
    round_all = lambda x: rounded_to(x, dtype)  # noqa: E731
    found = np.asarray((jax.jit(round_all) if compiled else round_all)(jnp.asarray(array)))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = array.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(expected)[found == 0])
    np.testing.assert_array_equal(np.asarray(jnp.asarray(found).astype(dtype).astype(jnp.float32)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cotangents_and_tangents_are_rounded(dtype):
    small = jnp.float32(jnp.finfo(dtype).smallest_subnormal)
    round_all = lambda x: rounded_to(x, dtype)  # noqa: E731
    for factor in (1.0, 1.1, 3.0):
        expected = float(round(factor) * small)
        [cotangent] = jax.vjp(round_all, jnp.float32(1.0))[1](factor * small)
        assert float(cotangent) == expected
        assert float(jax.jvp(round_all, (jnp.float32(1.0),), (factor * small,))[1]) == expected
    np.testing.assert_array_equal(jax.vmap(jax.grad(round_all))(jnp.ones(3)), 1.0)


def test_bfloat16_has_the_exponents_of_float32():
    names = [one.primitive.name for one in jax.make_jaxpr(lambda x: rounded_to(x, jnp.bfloat16))(1.0).eqns]
    assert names == ["reduce_precision"]
