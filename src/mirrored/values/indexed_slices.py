"""`IndexedSlices`: a sparse array that consists of some rows of a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import NotConstant, evaluate
from mirrored._typing import HostArray, Operand


class IndexedSlices:
    """Rows of a larger array, and their indices. Rows with the same index accumulate.

    Context: any. Operations that expect an array convert it to a dense one; `dense_shape` must be known for that.
    `reduce` and `all_reduce` concatenate the rows of the replicas and return `IndexedSlices`.

    Args:
        values: The rows, ``dtype[rows, ...]``.
        indices: The index of each row in the dense array, ``int[rows]``.
        dense_shape: The shape of the dense array, if known.

    Example:
        >>> rows = IndexedSlices(jnp.ones([2, 1]), jnp.array([2, 2]), (3, 1))
        >>> rows.to_dense()
        Array([[0.],
               [0.],
               [2.]], dtype=float32)

    TensorFlow: `tf.IndexedSlices`. Gradients of embedding lookups are dense here, not `IndexedSlices`.
    """

    def __init__(
        self, values: Operand, indices: Operand, dense_shape: Sequence[int] | jax.Array | HostArray | None = None
    ) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = _static_shape(dense_shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the rows."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the dense array. Its first dimension is None if `dense_shape` is unknown."""
        return (None, *self.values.shape[1:]) if self.dense_shape is None else tuple(self.dense_shape)

    def to_dense(self) -> jax.Array:
        """Returns the dense array.

        Raises:
            ValueError: `dense_shape` is unknown.
        """
        if self.dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices without dense_shape: give dense_shape")
        shape = tuple(int(size) for size in self.dense_shape)
        values = jnp.asarray(self.values)
        indices = without_wrapping(jnp.asarray(self.indices), shape[0])
        return jnp.zeros(shape, values.dtype).at[indices].add(values, mode="drop")

    def __jax_array__(self) -> jax.Array:
        """Returns the dense array."""
        return self.to_dense()

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values}, indices={self.indices}, dense_shape={self.dense_shape})"


def without_wrapping(indices: jax.Array, size: int) -> jax.Array:
    """Returns indices of which negative ones are out of bounds, as in TensorFlow; JAX counts those from the end."""
    return jnp.where(indices < 0, jnp.asarray(size, indices.dtype), indices)


def _static_shape(shape: object) -> Any:
    """Returns a known shape as a tuple. It is then part of the pytree structure, and so equal on all replicas."""
    if shape is None or isinstance(shape, tuple):
        return shape
    try:
        return tuple(int(size) for size in np.asarray(evaluate(shape)))
    except (NotConstant, TypeError, ValueError):
        return shape


def _flatten(rows: IndexedSlices) -> tuple[tuple[Any, ...], Any]:
    if rows.dense_shape is None or isinstance(rows.dense_shape, tuple):
        return (rows.values, rows.indices), rows.dense_shape
    return (rows.values, rows.indices, rows.dense_shape), None


def _unflatten(static_shape: tuple[int, ...] | None, children: Sequence[Any]) -> IndexedSlices:
    values, indices, *shape = children
    made = object.__new__(IndexedSlices)
    made.values, made.indices, made.dense_shape = values, indices, shape[0] if shape else static_shape
    return made


jax.tree_util.register_pytree_node(IndexedSlices, _flatten, _unflatten)
