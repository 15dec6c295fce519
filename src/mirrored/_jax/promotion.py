"""Promotes dtypes for the library's own computations, whatever JAX's promotion setting is.

`jax.numpy_dtype_promotion("strict")` refuses the implicit promotions of the user's program. The library's own wider
accumulators, and its casts to the dtype of a variable, are explicit.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike


def promoted(one: DTypeLike, other: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype to which JAX promotes two dtypes by its standard rules."""
    with jax.numpy_dtype_promotion("standard"):
        return np.dtype(jnp.promote_types(one, other))


def at_least_float32(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype in which values of `dtype` are accumulated: float32, or `dtype` if that is wider.

    Half precision has too few bits for sums, and integers have no fractions.
    """
    return promoted(dtype, jnp.float32)
