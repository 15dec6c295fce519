"""Packing many arrays into few buffers, so that a collective is issued once for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp


def over_packs(
    collective: Callable[[Any], Any], arrays: Sequence[Any], *, num_packs: int = 1, multiple: int = 1
) -> list[Any]:
    """Applies a collective to `arrays`, packed.

    Args:
        collective: From a flat buffer to a flat buffer of the same length.
        arrays: Any shapes and dtypes. Empty ones are left out; the collective is not told of them.
        num_packs: At most so many buffers for each dtype; 0: one for each array.
        multiple: The length of each buffer is padded to a multiple of this.
    """
    results = list(arrays)
    for places in _packs(arrays, num_packs):
        buffer = jnp.concatenate([jnp.ravel(arrays[i]) for i in places])
        padded = jnp.pad(buffer, (0, -buffer.size % multiple))
        reduced = collective(padded)[: buffer.size]
        start = 0
        for i in places:
            results[i] = reduced[start : start + arrays[i].size].reshape(arrays[i].shape)
            start += arrays[i].size
    return results


def _packs(arrays: Sequence[Any], num_packs: int) -> list[list[int]]:
    """The places of the arrays of each pack: one dtype, neighbours, and about equal sizes."""
    packs: list[list[int]] = []
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        places = [i for i, array in enumerate(arrays) if array.dtype == dtype and array.size]
        packs += _split(places, [arrays[i].size for i in places], num_packs or len(places))
    return packs


def _split(places: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    target = math.ceil(sum(sizes) / count) if sizes else 0
    packs: list[list[int]] = []
    filled = target
    for place, size in zip(places, sizes, strict=True):
        if filled >= target or (packs and count == len(places)):
            packs.append([])
            filled = 0
        packs[-1].append(place)
        filled += size
    return packs
