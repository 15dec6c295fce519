"""Conversions of 16-bit floats for sums and means, which accumulate in float32 and round once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def widen(array: Any) -> Any:
    """Converts 16-bit floats to float32. Returns other arrays unchanged.

    The explicit rounding is needed because XLA may keep excess precision across a pair of conversions.
    """
    info = _narrow_float(array.dtype)
    if info is None:
        return array
    return lax.reduce_precision(array.astype(jnp.float32), exponent_bits=info.nexp, mantissa_bits=info.nmant)


def narrow(array: Any, dtype: Any) -> Any:
    """Rounds the result of `widen` back to `dtype`. Returns it unchanged if `dtype` is not a 16-bit float."""
    info = _narrow_float(dtype)
    if info is None:
        return array
    return lax.reduce_precision(array, exponent_bits=info.nexp, mantissa_bits=info.nmant).astype(dtype)


def _narrow_float(dtype: Any) -> Any:
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.dtype(dtype).itemsize > 2:
        return None
    return jnp.finfo(dtype)  # type: ignore[no-untyped-call]
