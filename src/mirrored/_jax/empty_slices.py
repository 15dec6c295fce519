"""Gives a tape-tracked array a gradient of zeros, instead of None, if a loss depends only on an empty slice.

Supports JAX 0.10 to 0.12: the classes of `array.at` and `array.at[index]`, which JAX does not export.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax as _lax

from mirrored._jax.private import array_methods as _array_methods
from mirrored._jax.private import dtypes as _dtypes


def connected(part: jax.Array, whole: jax.Array) -> Any:
    """Returns the slice `part` of `whole`, connected so that gradients flow to `whole` even if the slice is empty.

    JAX creates an empty result without using `whole`, so it would have no gradient.
    """
    if part.size or not whole.size or not _dtypes.issubdtype(whole.dtype, np.inexact):
        return part
    nothing = _lax.slice(_lax.reshape(whole, (whole.size,)), (0,), (0,))
    return _lax.reshape(nothing, part.shape)


class _ConnectedRef(_array_methods._IndexUpdateRef):
    """The result of `array.at[index]`; gradients flow through `get()` to `array` even if the slice is empty."""

    __slots__ = ()

    def get(self, **options: Any) -> Any:
        return connected(super().get(**options), self.array)


class _ConnectedAt(_array_methods._IndexUpdateHelper):
    """Type of `array.at` for tape-tracked arrays, which lets gradients flow through empty slices."""

    __slots__ = ()

    def __getitem__(self, index: object) -> _ConnectedRef:
        return _ConnectedRef(self.array, index)


connected_at: Any = property(_ConnectedAt, doc="`jax.Array.at`.")
