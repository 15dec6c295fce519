"""`tf.contrib.distribute.MirroredStrategy`: the strategy of TensorFlow 1, as a thin adapter over today's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirrored.cluster import ClusterSpec
from mirrored.data.input_options import InputContext, InputReplicationMode
from mirrored.data.legacy import InputIterator, make_dataset_iterator, make_input_fn_iterator
from mirrored.errors import ArgumentError
from mirrored.strategies import MirroredStrategy as _MirroredStrategy

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

    def make_dataset_iterator(self, dataset: Any) -> InputIterator:
        """An iterator over `dataset`, whose batches go to one replica each; call its `initialize()` first.

        Context: cross-replica.
        """
        return make_dataset_iterator(self, dataset, per_replica_batches=True)

    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> InputIterator:
        """An iterator over what `input_fn` gives for this worker; consecutive elements go to consecutive replicas.

        Context: cross-replica.
        """
        return make_input_fn_iterator(self, input_fn, replication_mode)

    def experimental_run(self, fn: Callable[..., Any], input_iterator: InputIterator | None = None) -> Any:
        """Runs `fn` on every replica, with the next element of `input_iterator` if there is one.

        Context: cross-replica.
        """
        return self.run(fn, args=() if input_iterator is None else (input_iterator.get_next(),))

    def experimental_initialize(self) -> list[Any]:
        """Nothing to initialize."""
        return []

    def experimental_finalize(self) -> list[Any]:
        """Nothing to finalize."""
        return []

    initialize, finalize = experimental_initialize, experimental_finalize

    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """The components of a value: `experimental_local_results` under its old name."""
        return self.experimental_local_results(value)

    def configure(
        self,
        session_config: Any = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Accepts a cluster of one worker, which changes nothing.

        Raises:
            ArgumentError: The cluster has several workers.
        """
        if cluster_spec is None:
            return
        spec = ClusterSpec(cluster_spec if isinstance(cluster_spec, Mapping) else cluster_spec.as_dict())
        workers = sum(spec.num_tasks(job) for job in spec.jobs if job in ("chief", "master", "worker"))
        if workers > 1:
            raise ArgumentError(
                f"{_CALLED}.configure",
                found=f"a cluster of {workers} workers",
                rule="this strategy runs in one process; with several workers each runs the program itself",
                remedy="start one process per worker, with a multi-worker strategy in each",
            )

    def update_config_proto(self, config_proto: Any) -> Any:
        """`config_proto` as it is: there is no session to configure."""
        return config_proto


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
