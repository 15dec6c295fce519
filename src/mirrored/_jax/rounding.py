"""Rounds float32 arrays to the values of a smaller float dtype, as one primitive whose derivative is rounded, too."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.extend.core as _extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir

from mirrored._typing import DTypeLike

# Rounds to the nearest value of a dtype, in float32.
#
# A pair of conversions would not do: XLA may remove it and keep the excess precision. Nor would `lax.reduce_precision`
# with the exponent bits of the dtype: XLA flushes subnormal numbers to zero (float16: below 6.1e-5, more than many
# gradients), and it has an infinity where dtypes such as float8_e4m3fn have finite numbers.
#
# It is a primitive because subnormal numbers need `lax.round`, whose derivative is zero. Its own derivative is that of
# `lax.reduce_precision`: the identity, with tangents and cotangents rounded.
#
# Supports JAX 0.10 to 0.12 (`jax.extend.core.Primitive`, `jax.interpreters`).

ROUND: Final = "round_to_dtype"
_primitive: Final = _extend.Primitive(ROUND)
_FLOAT32_EXPONENT_BITS: Final = 8


def rounded_to(array: jax.Array, dtype: DTypeLike) -> Any:
    """Rounds a float32 array to the nearest values of a float dtype of at most 16 bits; the result is float32."""
    info = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    if info.nexp == _FLOAT32_EXPONENT_BITS:  # bfloat16: `reduce_precision` leaves its exponents
        return lax.reduce_precision(array, info.nexp, info.nmant)
    return _primitive.bind(array, dtype=jnp.dtype(dtype))


def _rounded(array: jax.Array, *, dtype: DTypeLike) -> jax.Array:
    """Rounds mantissas to the precision of `dtype`, and handles subnormal and overflowing values separately."""
    info = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    normal, step, largest = (float(one) for one in (info.smallest_normal, info.smallest_subnormal, info.max))
    with np.errstate(over="ignore"):
        above = float(np.array(np.inf, np.float32).astype(dtype))  # infinity, NaN or the largest number
    result = lax.reduce_precision(array, _FLOAT32_EXPONENT_BITS, info.nmant)
    # Below the normal numbers all steps are equal. The multiplications by powers of two are exact.
    multiples = lax.round(array * np.float32(1 / step), lax.RoundingMethod.TO_NEAREST_EVEN)
    result = lax.select(lax.abs(array) < np.float32(normal), multiples * np.float32(step), result)
    return lax.select(lax.abs(result) > np.float32(largest), lax.sign(result) * np.float32(above), result)


_primitive.def_impl(jax.jit(_rounded, static_argnames="dtype"))
_primitive.def_abstract_eval(lambda array, dtype: array)
_ad.deflinear2(_primitive, lambda cotangent, _, dtype: [_primitive.bind(cotangent, dtype=dtype)])
_batching.defvectorized(_primitive)
_mlir.register_lowering(_primitive, _mlir.lower_fun(_rounded, multiple_results=False))
