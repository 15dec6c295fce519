"""`tf.contrib.distribute.MirroredStrategy`: a strategy with the constructor and iterators of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrored._typing import PyTree
from mirrored.collectives.cross_device_ops import CrossDeviceOps
from mirrored.data.distribution import distribute_from_function
from mirrored.data.legacy import InputIterator
from mirrored.errors import ArgumentError
from mirrored.strategies import MirroredStrategy as _MirroredStrategy
from mirrored.strategies.checks import refuse_in_replica
from mirrored.tf._data.datasets import Dataset

_CALLED = "tf.contrib.distribute.MirroredStrategy"


class MirroredStrategy(_MirroredStrategy):
    """`mirrored.MirroredStrategy` with the constructor arguments and iterators of `tf.contrib` in TensorFlow 1.

    Args:
        devices: Device names. Pass either these or a number of GPUs.
        num_gpus: Number of GPUs: ``GPU:0`` to ``GPU:n-1``; 0 is ``CPU:0``.
        num_gpus_per_worker: The same as `num_gpus`; pass only one of the two.
        cross_device_ops: The algorithm that reduces values across replicas.
        auto_shard_dataset: Whether workers take shards of a dataset; one process has nothing to shard.
        cross_tower_ops: Deprecated alias of `cross_device_ops`.

    Raises:
        ArgumentError: Two arguments exclude each other, or the number of GPUs is negative.
        DeviceError: A device does not exist.

    Example:
        >>> import mirrored.tf as tf
        >>> tf.contrib.distribute.MirroredStrategy(num_gpus=0).num_replicas_in_sync
        1

    TensorFlow: `tf.contrib.distribute.MirroredStrategy`. Its multi-worker form replicates in one graph that one client
    drives. Here every worker runs the program itself: use `MultiWorkerMirroredStrategy`.
    """

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        num_gpus: int | None = None,
        num_gpus_per_worker: int | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        auto_shard_dataset: bool = False,
        cross_tower_ops: CrossDeviceOps | None = None,
    ) -> None:
        _refuse_both("num_gpus", num_gpus, "num_gpus_per_worker", num_gpus_per_worker)
        count = num_gpus if num_gpus is not None else num_gpus_per_worker
        _refuse_both("devices", devices, "a number of GPUs", count)
        _refuse_both("cross_device_ops", cross_device_ops, "cross_tower_ops", cross_tower_ops)
        super().__init__(
            devices if count is None else _gpus(count),
            cross_device_ops if cross_device_ops is not None else cross_tower_ops,
        )

    def make_dataset_iterator(self, dataset: object) -> InputIterator:
        """Returns an iterator over a batched dataset; in each step, every replica receives one batch.

        Context: cross-replica.
        """
        refuse_in_replica("make_dataset_iterator")
        return self._iterator(dataset)

    def _iterator(self, dataset: object) -> InputIterator:
        return InputIterator(distribute_from_function(self, lambda _: dataset))

    def experimental_make_numpy_iterator(
        self,
        numpy_input: PyTree,
        batch_size: int,
        num_epochs: int | None = 1,
        shuffle: int | None = 1024,
        session: object = None,
    ) -> InputIterator:
        """Returns an iterator over NumPy arrays that gives each replica `batch_size` examples per step.

        Context: cross-replica.

        Args:
            numpy_input: A structure of arrays with the same first dimension.
            batch_size: Rows per replica.
            num_epochs: Number of epochs; None repeats indefinitely.
            shuffle: Size of the shuffle buffer; None or 0 keeps the order.
            session: Accepted for compatibility and ignored.
        """
        dataset = Dataset.from_tensor_slices(numpy_input)
        shuffled = dataset.shuffle(shuffle) if shuffle else dataset
        return self._iterator(shuffled.repeat(num_epochs).batch(batch_size))

    def experimental_initialize(self) -> list[Any]:
        """Does nothing: a strategy needs no initialization."""
        return []

    def experimental_finalize(self) -> list[Any]:
        """Does nothing: a strategy holds nothing to finalize."""
        return []

    initialize, finalize = experimental_initialize, experimental_finalize


def _refuse_both(first: str, one: object, second: str, other: object) -> None:
    if one is None or other is None:
        return
    raise ArgumentError(
        _CALLED,
        found=f"{first}={one!r} and {second}={other!r} were passed",
        rule="only one of these two arguments can be passed",
        remedy="omit one of them",
    )


def _gpus(count: int) -> list[str]:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ArgumentError(
            _CALLED,
            found=f"num_gpus={count!r} was passed",
            rule="num_gpus must be a number of GPUs, 0 or more",
            remedy="pass 2 for GPU:0 and GPU:1, or 0 for the CPU",
        )
    return [f"GPU:{i}" for i in range(count)] or ["CPU:0"]
