"""`tf.contrib.distribute.MirroredStrategy`: the strategy of TensorFlow 1, as a thin adapter over today's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrored.data.legacy import InputIterator, make_dataset_iterator
from mirrored.errors import ArgumentError
from mirrored.strategies import MirroredStrategy as _MirroredStrategy
from mirrored.tf._datasets import Dataset

_CALLED = "tf.contrib.distribute.MirroredStrategy"


class MirroredStrategy(_MirroredStrategy):
    """The strategy of the contrib era: one replica per device, with that era's arguments and iterators.

    Args:
        devices: Device names. Give these or a number of GPUs.
        num_gpus: How many GPUs: ``GPU:0`` to ``GPU:n-1``; 0 is ``CPU:0``.
        num_gpus_per_worker: The same; only one of both may be given.
        cross_device_ops: How values of several replicas become one.
        auto_shard_dataset: Whether workers take shards of a dataset; one process has nothing to shard.
        cross_tower_ops: Deprecated alias of `cross_device_ops`.

    Raises:
        ArgumentError: Arguments that exclude each other, or a negative number of GPUs.
        DeviceError: A device that does not exist.

    Example:
        >>> import mirrored.tf as tf
        >>> tf.contrib.distribute.MirroredStrategy(num_gpus=0).num_replicas_in_sync
        1

    TensorFlow: `tf.contrib.distribute.MirroredStrategy`. Its multi-worker form replicated in one graph, driven by one
    client; here every worker runs the program itself, which is `MultiWorkerMirroredStrategy`'s business.
    """

    _batches_are_per_replica = True

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        num_gpus: int | None = None,
        num_gpus_per_worker: int | None = None,
        cross_device_ops: Any = None,
        auto_shard_dataset: bool = False,
        cross_tower_ops: Any = None,
    ) -> None:
        _refuse_both("num_gpus", num_gpus, "num_gpus_per_worker", num_gpus_per_worker)
        count = num_gpus if num_gpus is not None else num_gpus_per_worker
        _refuse_both("devices", devices, "a number of GPUs", count)
        _refuse_both("cross_device_ops", cross_device_ops, "cross_tower_ops", cross_tower_ops)
        self._auto_shard_dataset = bool(auto_shard_dataset)
        super().__init__(
            devices if count is None else _gpus(count),
            cross_device_ops if cross_device_ops is not None else cross_tower_ops,
        )

    def experimental_make_numpy_iterator(
        self,
        numpy_input: Any,
        batch_size: int,
        num_epochs: int | None = 1,
        shuffle: int | None = 1024,
        session: Any = None,
    ) -> InputIterator:
        """An iterator over the rows of arrays, in batches of `batch_size` for each replica.

        Context: cross-replica.

        Args:
            numpy_input: A structure of arrays that agree in their first dimension.
            batch_size: Rows for each replica.
            num_epochs: How often; None for ever.
            shuffle: The size of the shuffle buffer; None or 0: rows come in order.
            session: Accepted for TensorFlow's sake.
        """
        dataset = Dataset.from_tensor_slices(numpy_input)
        shuffled = dataset.shuffle(shuffle) if shuffle else dataset
        return make_dataset_iterator(self, shuffled.repeat(num_epochs).batch(batch_size), True)

    def experimental_initialize(self) -> list[Any]:
        """Nothing to initialize."""
        return []

    def experimental_finalize(self) -> list[Any]:
        """Nothing to finalize."""
        return []

    initialize, finalize = experimental_initialize, experimental_finalize


def _refuse_both(first: str, one: Any, second: str, other: Any) -> None:
    if one is None or other is None:
        return
    raise ArgumentError(
        _CALLED,
        found=f"{first}={one!r} and {second}={other!r}",
        rule="they say the same thing",
        remedy="give one of them",
    )


def _gpus(count: int) -> list[str]:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ArgumentError(
            _CALLED,
            found=f"num_gpus={count!r}",
            rule="it is a number of GPUs, 0 or more",
            remedy="num_gpus=2 for GPU:0 and GPU:1; 0 for the CPU",
        )
    return [f"GPU:{i}" for i in range(count)] or ["CPU:0"]
