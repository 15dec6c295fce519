"""Bucketing: packs many arrays into few flat buffers, so that fewer collectives are issued."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax.numpy as jnp

SMALL_BYTES: Final = 128 * 1024
"""The largest array, in bytes, that is bucketed across processes, where each buffer costs a separate message.

Measured on loopback with 2 processes: 100 x 1 KiB 21 -> 1.3 ms, 32 x 64 KiB 8.1 -> 2.9 ms, but 8 x 1 MiB
10.1 -> 12.2 ms.
"""


def over_buckets(
    collective: Callable[[Any], Any], arrays: Sequence[Any], *, num_packs: int = 1, multiple: int = 1
) -> list[Any]:
    """Applies a collective to buckets of `arrays`.

    Args:
        collective: Maps a flat buffer to a flat buffer of the same length.
        arrays: Arrays of any shapes and dtypes. Empty arrays are returned as they are.
        num_packs: The maximum number of buckets per dtype. 0 means one per array.
        multiple: The length of each buffer is padded to a multiple of this number.

    Returns:
        The results, in the order and shapes of `arrays`.
    """
    results = list(arrays)
    for positions in _buckets(arrays, num_packs):
        buffer = jnp.concatenate([jnp.ravel(arrays[i]) for i in positions])
        padded = jnp.pad(buffer, (0, -buffer.size % multiple))
        reduced = collective(padded)[: buffer.size]
        start = 0
        for i in positions:
            results[i] = reduced[start : start + arrays[i].size].reshape(arrays[i].shape)
            start += arrays[i].size
    return results


def over_small_buckets(
    collective: Callable[[list[Any]], Sequence[Any]],
    arrays: Sequence[Any],
    *,
    small_bytes: int = SMALL_BYTES,
    kernel: Callable[..., list[Any]] | None = None,
) -> list[Any]:
    """Applies a collective to `arrays`, with the small arrays of each dtype in one bucket.

    Args:
        collective: Maps a list of arrays to a list of arrays of the same shapes, element-wise.
        arrays: Arrays of any shapes and dtypes.
        small_bytes: The maximum size in bytes of an array that is bucketed.
        kernel: Runs packing and unpacking as ``kernel(function, arrays)``, for instance behind a fusion boundary. None
            calls the function directly.

    Returns:
        The results, in the order and shapes of `arrays`.
    """
    run = kernel or (lambda function, operands: function(operands))
    small = [i for i, array in enumerate(arrays) if 0 < array.size * array.dtype.itemsize <= small_bytes]
    buckets = [
        [i for i in small if arrays[i].dtype == dtype] for dtype in dict.fromkeys(arrays[i].dtype for i in small)
    ]
    buckets = [positions for positions in buckets if len(positions) > 1]
    bucketed = {i for positions in buckets for i in positions}
    single = [i for i, array in enumerate(arrays) if i not in bucketed and array.size]
    buffers = [run(_pack, [arrays[i] for i in positions])[0] for positions in buckets]
    reduced = list(collective([*buffers, *(arrays[i] for i in single)])) if buckets or single else []
    results = list(arrays)
    for i, array in zip(single, reduced[len(buckets) :], strict=True):
        results[i] = array
    for positions, buffer in zip(buckets, reduced, strict=False):
        unpack = functools.partial(unpack_buckets, shapes=[arrays[i].shape for i in positions])
        for i, array in zip(positions, run(unpack, [buffer]), strict=True):
            results[i] = array
    return results


def _pack(arrays: Sequence[Any]) -> list[Any]:
    return [jnp.concatenate([jnp.ravel(array) for array in arrays])]


def unpack_buckets(buffers: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Splits a list of one flat buffer into arrays of these shapes. The buffer may be longer than they need."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = itertools.accumulate(sizes, initial=0)
    return [
        buffers[0][start : start + size].reshape(shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=False)
    ]


def _buckets(arrays: Sequence[Any], num_packs: int) -> list[list[int]]:
    """Returns the positions of the arrays in each bucket. A bucket has one dtype and consecutive arrays.

    The buckets of a dtype have about the same size.
    """
    buckets: list[list[int]] = []
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        positions = [i for i, array in enumerate(arrays) if array.dtype == dtype and array.size]
        buckets += _split(positions, [arrays[i].size for i in positions], num_packs or len(positions))
    return buckets


def _split(positions: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    target = math.ceil(sum(sizes) / count) if sizes else 0
    buckets: list[list[int]] = []
    filled = target
    for position, size in zip(positions, sizes, strict=True):
        if filled >= target or (buckets and count == len(positions)):
            buckets.append([])
            filled = 0
        buckets[-1].append(position)
        filled += size
    return buckets
