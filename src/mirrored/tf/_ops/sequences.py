"""`tf.one_hot`, `tf.sequence_mask` and `tf.reverse_sequence`."""

from __future__ import annotations

from typing import SupportsIndex

import jax
import jax.numpy as jnp

from mirrored._typing import DTypeLike, Operand
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._static import static_int
from mirrored.tf._table import op
from mirrored.tf._tensors import as_tensor


@op("one_hot")
def one_hot(
    indices: Operand,
    depth: SupportsIndex,
    on_value: Operand = None,
    off_value: Operand = None,
    axis: SupportsIndex | None = None,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Returns a one-hot encoding of indices along a new axis; an index out of range gives only `off_value`.

    Elements are `on_value` at the index, and `off_value` elsewhere.
    """
    if dtype is None:
        given = [as_tensor(one).dtype for one in (on_value, off_value) if one is not None]
        dtype = given[0] if given else "float32"
    place = -1 if axis is None else static_int(axis, called="tf.one_hot", argument="axis")
    size_of = static_int(depth, called="tf.one_hot", argument="depth")
    hot = jax.nn.one_hot(as_tensor(indices), size_of, dtype=jnp.bool_, axis=place)
    on = as_tensor(1 if on_value is None else on_value).astype(array_dtype(dtype))
    off = as_tensor(0 if off_value is None else off_value).astype(array_dtype(dtype))
    return jnp.where(hot, on, off)


@op("sequence_mask")
def sequence_mask(lengths: Operand, maxlen: SupportsIndex | None = None, dtype: DTypeLike = "bool") -> jax.Array:
    """Returns a mask whose row i is True at the first ``lengths[i]`` positions.

    The result is [..., maxlen]; in eager code, `maxlen` is optional.
    """
    counts = as_tensor(lengths)
    limit = jnp.max(counts) if maxlen is None else maxlen
    positions = jnp.arange(static_int(limit, called="tf.sequence_mask", argument="maxlen"))
    return (positions < counts[..., None]).astype(array_dtype(dtype))


@op("reverse_sequence")
def reverse_sequence(
    input: Operand, seq_lengths: Operand, seq_axis: int | None = None, batch_axis: int | None = None
) -> jax.Array:
    """Reverses the first ``seq_lengths[i]`` elements of the i-th sequence of a batch.

    The sequences are along `seq_axis`.
    """
    value, lengths = as_tensor(input), as_tensor(seq_lengths)
    along, batch = int(seq_axis or 0), int(batch_axis or 0)
    moved = jnp.moveaxis(value, (batch, along), (0, 1))
    positions = jnp.arange(moved.shape[1])
    order = jnp.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    picked = jnp.take_along_axis(moved, order.reshape(order.shape + (1,) * (moved.ndim - 2)), axis=1)
    return jnp.moveaxis(picked, (0, 1), (batch, along))
