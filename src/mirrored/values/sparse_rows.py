"""`SparseRows`: sparse gradients, as selected rows of a larger array with their indices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import NotConstant, evaluate
from mirrored._typing import HostArray, Operand
from mirrored.errors import ArgumentError, StructureError
from mirrored.values.index_checks import outside


class SparseRows:
    """Selected rows of a larger array, with their indices, like `tf.IndexedSlices`; repeated indices accumulate.

    `reduce` and `all_reduce` concatenate the rows of the replicas. A facade such as `mirrored.tf` defines a subclass
    under its own name that takes the same arguments, and decorates it with `as_pytree`.

    Args:
        values: The rows, ``dtype[rows, ...]``.
        indices: The index of each row in the dense array, ``int[rows]``.
        dense_shape: The shape of the dense array, if known.
    """

    def __init__(
        self, values: Operand, indices: Operand, dense_shape: Sequence[int] | jax.Array | HostArray | None = None
    ) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = _static_shape(dense_shape)

    def to_dense(self) -> jax.Array:
        """Returns a dense array of zeros to which the rows have been added at their indices.

        Raises:
            ValueError: `dense_shape` is unknown.
            StructureError: There is not one row per index.
            ArgumentError: An index is out of range. Compiled code and devices other than CPUs ignore such rows.
        """
        kind = type(self).__name__
        if self.dense_shape is None:
            raise ValueError(f"Tensor conversion requested for {kind} without dense_shape: give dense_shape")
        shape = tuple(int(size) for size in self.dense_shape)
        values = jnp.asarray(self.values)
        indices = jnp.asarray(self.indices)
        wanted = (*indices.shape, *shape[1:])
        if values.shape != wanted:
            raise StructureError(
                f"{kind}.to_dense",
                found=f"values of shape {values.shape} for indices of shape {indices.shape} and dense_shape {shape}",
                rule=f"there must be one row for each index: here the shape {wanted}",
                remedy="broadcast the values with jnp.broadcast_to, or correct the indices",
            )
        if found := outside(indices, shape[0]):
            raise ArgumentError(
                f"{kind}.to_dense",
                found=found,
                rule="an index must be 0 or more, and less than the first dimension of dense_shape",
                remedy="correct the indices; negative ones do not count from the end",
            )
        indices = without_wrapping(indices, shape[0])
        return jnp.zeros(shape, values.dtype).at[indices].add(values, mode="drop")


S = TypeVar("S", bound=SparseRows)


def as_pytree(kind: type[S]) -> type[S]:
    """Class decorator that registers a class of sparse rows as a JAX pytree node.

    A known shape is part of the tree's structure.
    """
    jax.tree_util.register_pytree_node(kind, _flatten, functools.partial(_unflatten, kind))
    return kind


def without_wrapping(indices: jax.Array, size: int) -> jax.Array:
    """Replaces negative indices by `size`, which is out of bounds, so that JAX does not count them from the end."""
    if indices.dtype.itemsize < 4:
        indices = indices.astype(jnp.int32)  # the size may exceed the dtype
    return jnp.where(indices < 0, jnp.asarray(size, indices.dtype), indices)


def updates_shape(indices_shape: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that the updates of a scatter into an array of shape `shape` must have.

    Args:
        indices_shape: The shape of the index vectors, ``int[..., depth]``.
        shape: The shape of the array.
    """
    return (*indices_shape[:-1], *shape[indices_shape[-1] :])


def _static_shape(shape: object) -> Any:
    """Converts a known shape to a tuple, which can be part of the pytree structure; returns other values unchanged."""
    if shape is None or isinstance(shape, tuple):
        return shape
    try:
        return tuple(int(size) for size in np.asarray(evaluate(shape)))
    except (NotConstant, TypeError, ValueError):
        return shape


def _flatten(rows: SparseRows) -> tuple[tuple[Any, ...], Any]:
    if rows.dense_shape is None or isinstance(rows.dense_shape, tuple):
        return (rows.values, rows.indices), rows.dense_shape
    return (rows.values, rows.indices, rows.dense_shape), None


def _unflatten(kind: type[S], static_shape: tuple[int, ...] | None, children: Sequence[Any]) -> S:
    values, indices, *shape = children
    made = object.__new__(kind)
    made.values, made.indices, made.dense_shape = values, indices, shape[0] if shape else static_shape
    return made
