"""`IndexedSlices`: some rows of an array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.concrete import NotConstant, evaluate


class IndexedSlices:
    """Rows of a larger array, and where they are; rows with the same index add up.

    Context: any. Wherever a tensor is wanted it becomes a dense one, if `dense_shape` is known. Over replicas rows are
    concatenated: `reduce` and `all_reduce` give rows again.

    Args:
        values: ``dtype[rows, ...]``.
        indices: ``int[rows]``.
        dense_shape: The shape of the whole, if known.

    Example:
        >>> rows = IndexedSlices(jnp.ones([2, 1]), jnp.array([2, 2]), (3, 1))
        >>> rows.to_dense()
        Array([[0.],
               [0.],
               [2.]], dtype=float32)

    TensorFlow: `tf.IndexedSlices`. Gradients of lookups are dense here.
    """

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = _static_shape(dense_shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the rows."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the whole; its first dimension is None if it is not known."""
        return (None, *self.values.shape[1:]) if self.dense_shape is None else tuple(self.dense_shape)

    def to_dense(self) -> jax.Array:
        """The dense array.

        Raises:
            ValueError: `dense_shape` is not known.
        """
        if self.dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices without dense_shape: give dense_shape")
        shape = tuple(int(size) for size in self.dense_shape)
        values = jnp.asarray(self.values)
        return jnp.zeros(shape, values.dtype).at[jnp.asarray(self.indices)].add(values)

    def __jax_array__(self) -> jax.Array:
        """The dense array."""
        return self.to_dense()

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values}, indices={self.indices}, dense_shape={self.dense_shape})"


def _static_shape(shape: Any) -> Any:
    """A shape as a tuple where it is known: then it is part of the structure, and equal on all replicas."""
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


def _unflatten(static_shape: Any, children: Any) -> IndexedSlices:
    values, indices, *shape = children
    made = object.__new__(IndexedSlices)
    made.values, made.indices, made.dense_shape = values, indices, shape[0] if shape else static_shape
    return made


jax.tree_util.register_pytree_node(IndexedSlices, _flatten, _unflatten)
