"""`tf.IndexedSlices`: some rows of a tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class IndexedSlices(NamedTuple):
    """Rows of a larger tensor, and where they are; rows with the same index add up.

    Context: any. Wherever a tensor is wanted it becomes a dense one, if `dense_shape` is known.

    Attributes:
        values: ``dtype[rows, ...]``.
        indices: ``int[rows]``.
        dense_shape: The shape of the whole, if known.

    TensorFlow: `tf.IndexedSlices`. Gradients of lookups are dense here.
    """

    values: Any
    indices: Any
    dense_shape: Any = None

    @property
    def dtype(self) -> Any:
        """The dtype of the rows."""
        return self.values.dtype

    def __jax_array__(self) -> jax.Array:
        """The dense tensor.

        Raises:
            ValueError: `dense_shape` is not known.
        """
        if self.dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices without dense_shape: give dense_shape")
        shape = tuple(int(size) for size in self.dense_shape)
        return jnp.zeros(shape, self.values.dtype).at[jnp.asarray(self.indices)].add(self.values)
