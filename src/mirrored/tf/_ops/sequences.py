"""`tf.one_hot`, `tf.sequence_mask` and `tf.reverse_sequence`."""

from __future__ import annotations

from typing import SupportsIndex

import jax
import jax.numpy as jnp

from mirrored._typing import DTypeLike
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.indexing import require_indices, require_prefix
from mirrored.tf._static import static_int
from mirrored.tf._table import Int, op
from mirrored.tf._tensors import without_cutting


@op("one_hot")
def one_hot(
    indices: jax.Array,
    depth: Int,
    on_value: jax.Array | None = None,
    off_value: jax.Array | None = None,
    axis: Int | None = None,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Returns a one-hot encoding of indices along a new axis; out-of-range indices are encoded as all `off_value`.

    Elements are `on_value` at the index, and `off_value` elsewhere.

    Raises:
        InvalidArgumentError: The indices are not integers.
    """
    if indices.dtype.kind not in "iu":
        raise InvalidArgumentError.of(
            "tf.one_hot",
            found=f"`indices` have the dtype {indices.dtype}",
            rule="`indices` must be integers",
            remedy="convert them with tf.cast(indices, tf.int32)",
        )
    given = {"on_value": on_value, "off_value": off_value}
    if dtype is None:
        kinds = [one.dtype for one in given.values() if one is not None]
        # The fraction of a float beside an integer, as in on_value=1, off_value=0.1, is kept.
        dtype = next((one for one in kinds if jnp.issubdtype(one, jnp.inexact)), kinds[0] if kinds else "float32")
    for name, value in given.items():
        if value is not None:
            without_cutting("tf.one_hot", name, value, array_dtype(dtype))
    if indices.dtype.itemsize < 4:  # JAX compares in this dtype, in which the positions could wrap around
        indices = indices.astype(jnp.int32)
    hot = jax.nn.one_hot(indices, depth, dtype=jnp.bool_, axis=-1 if axis is None else axis)
    on = jnp.asarray(1 if on_value is None else on_value, array_dtype(dtype))
    return jnp.where(hot, on, jnp.asarray(0 if off_value is None else off_value, on.dtype))


@op("sequence_mask")
def sequence_mask(lengths: jax.Array, maxlen: SupportsIndex | None = None, dtype: DTypeLike = "bool") -> jax.Array:
    """Returns a mask whose row i is True at the first ``lengths[i]`` positions.

    The result is [..., maxlen]; in eager code, `maxlen` is optional.
    """
    limit = jnp.max(lengths, initial=0) if maxlen is None else maxlen
    positions = jnp.arange(static_int(limit, called="tf.sequence_mask", argument="maxlen"))
    return (positions < lengths[..., None]).astype(array_dtype(dtype))


@op("reverse_sequence")
def reverse_sequence(
    input: jax.Array, seq_lengths: jax.Array, seq_axis: Int | None = None, batch_axis: Int | None = None
) -> jax.Array:
    """Reverses the first ``seq_lengths[i]`` elements of the i-th sequence of a batch.

    The sequences are along `seq_axis`. In compiled code and on GPUs, a length that is too large means the whole
    sequence.

    Raises:
        InvalidArgumentError: A length is negative or too large, in eager code on a CPU.
    """
    moved = jnp.moveaxis(input, (batch_axis or 0, seq_axis or 0), (0, 1))
    require_prefix("tf.reverse_sequence", "seq_lengths", seq_lengths, "input", moved)
    require_indices("tf.reverse_sequence", seq_lengths, moved.shape[1] + 1, "seq_lengths")
    positions, lengths = jnp.arange(moved.shape[1]), jnp.clip(seq_lengths, 0, moved.shape[1])[:, None]
    order = jnp.where(positions < lengths, lengths - 1 - positions, positions)
    picked = jnp.take_along_axis(moved, order.reshape(order.shape + (1,) * (moved.ndim - 2)), axis=1)
    return jnp.moveaxis(picked, (0, 1), (batch_axis or 0, seq_axis or 0))
