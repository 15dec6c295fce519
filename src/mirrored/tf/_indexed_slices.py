"""`tf.IndexedSlices`: a sparse tensor, such as an embedding's gradient, that holds some rows of a dense tensor."""

from __future__ import annotations

from typing import Any

import jax

from mirrored.values.sparse_rows import SparseRows, as_pytree


@as_pytree
class IndexedSlices(SparseRows):
    """A sparse tensor that consists of some rows of a larger dense tensor, and of the rows' indices.

    Rows with the same index are added.

    Context: any. Operations that expect an array convert it to a dense one; `dense_shape` must be known for that.
    `reduce` and `all_reduce` concatenate the rows of the replicas and return `IndexedSlices`.

    Args:
        values: The rows, ``dtype[rows, ...]``.
        indices: The index of each row in the dense array, ``int[rows]``.
        dense_shape: The shape of the dense array, if known.

    Example:
        >>> import jax.numpy as jnp
        >>> rows = IndexedSlices(jnp.ones([2, 1]), jnp.array([2, 2]), (3, 1))
        >>> rows.to_dense()
        Array([[0.],
               [0.],
               [2.]], dtype=float32)

    TensorFlow: `tf.IndexedSlices`. Gradients of embedding lookups are dense here, not `IndexedSlices`.
    """

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the corresponding dense tensor; its first dimension is None if `dense_shape` is unknown."""
        return (None, *self.values.shape[1:]) if self.dense_shape is None else tuple(self.dense_shape)

    def __jax_array__(self) -> jax.Array:
        """Returns the corresponding dense array."""
        return self.to_dense()

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values}, indices={self.indices}, dense_shape={self.dense_shape})"
