"""16-bit floats in sums and means: added up in float32, and rounded once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def widen(array: Any) -> Any:
    """16-bit floats as float32, rounded to what they are: XLA keeps excess precision through conversions alone."""
    info = _narrow_float(array.dtype)
    if info is None:
        return array
    return lax.reduce_precision(array.astype(jnp.float32), exponent_bits=info.nexp, mantissa_bits=info.nmant)


def narrow(array: Any, dtype: Any) -> Any:
    """Back from `widen`."""
    info = _narrow_float(dtype)
    if info is None:
        return array
    return lax.reduce_precision(array, exponent_bits=info.nexp, mantissa_bits=info.nmant).astype(dtype)


def _narrow_float(dtype: Any) -> Any:
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.dtype(dtype).itemsize > 2:
        return None
    return jnp.finfo(dtype)  # type: ignore[no-untyped-call]
