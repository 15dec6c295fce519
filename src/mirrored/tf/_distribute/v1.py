"""`tf.compat.v1.distribute`: strategies with the additional methods of TensorFlow 1."""

from __future__ import annotations

from typing import Any

from mirrored._typing import PyTree
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.strategies import MirroredStrategy as _MirroredStrategy
from mirrored.strategies import OneDeviceStrategy as _OneDeviceStrategy
from mirrored.tf._data.datasets import Dataset


class _Version1:
    """The methods that a strategy of TensorFlow 1 has in addition to those of TensorFlow 2."""

    def reduce(self: Any, reduce_op: ReduceOp | str, value: PyTree, axis: int | None = None) -> Any:
        """Reduces a per-replica value across replicas; `axis` is optional, as in TensorFlow 1."""
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]

    def experimental_make_numpy_dataset(self, numpy_input: PyTree, session: object = None) -> Dataset:
        """Returns a dataset whose elements are the rows of NumPy arrays.

        Args:
            numpy_input: A structure of arrays with the same first dimension.
            session: Accepted for compatibility and ignored.
        """
        return Dataset.from_tensor_slices(numpy_input)


class MirroredStrategy(_Version1, _MirroredStrategy):
    """`mirrored.MirroredStrategy` with the additional methods of TensorFlow 1.

    Example:
        >>> import mirrored.tf as tf
        >>> strategy = tf.compat.v1.distribute.MirroredStrategy(["CPU:0"])
        >>> iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(4).batch(2))
        >>> strategy.experimental_run(lambda x: x + 1, iterator).tolist()
        [1, 2]

    TensorFlow: `tf.compat.v1.distribute.MirroredStrategy`, without sessions.
    """


class OneDeviceStrategy(_Version1, _OneDeviceStrategy):
    """`mirrored.OneDeviceStrategy` with the additional methods of TensorFlow 1.

    TensorFlow: `tf.compat.v1.distribute.OneDeviceStrategy`, without sessions.
    """
