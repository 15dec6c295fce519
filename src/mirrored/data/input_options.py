"""Options for distributing datasets over replicas (`InputOptions`), and `InputContext` for dataset functions."""

from __future__ import annotations

import dataclasses
import enum

from mirrored.data.placement import LastBatch, check_last_batch
from mirrored.errors import ArgumentError, UnsupportedOptionError


class InputReplicationMode(enum.Enum):
    """Enum: whether `distribute_datasets_from_function` calls its function once per worker or per replica.

    Attributes:
        PER_WORKER: Once per process; consecutive elements go to consecutive replicas of the process.
        PER_REPLICA: Once per replica; each replica gets all elements of its own dataset.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> options = mr.InputOptions(experimental_replication_mode=mr.InputReplicationMode.PER_REPLICA)
        >>> calls = []
        >>> def dataset_fn(context):
        ...     calls.append(context)
        ...     return mr.data.Dataset.range(4).batch(2)
        >>> _ = strategy.distribute_datasets_from_function(dataset_fn, options)
        >>> len(calls)
        2

    TensorFlow: `tf.distribute.InputReplicationMode`.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Options for `experimental_distribute_dataset` and `distribute_datasets_from_function`.

    Args:
        experimental_fetch_to_device: Whether batches are placed on the replicas' devices. If False, they stay in host
            memory.
        experimental_replication_mode: See `InputReplicationMode`.
        experimental_place_dataset_on_device: TensorFlow's option. The combinations that TensorFlow rejects raise an
            error here too.
        experimental_per_replica_buffer_size: Number of batches prefetched per replica.
        last_batch: What happens to a batch that is smaller than the first one or not divisible by the number of
            replicas.

            ``"split"``: n replicas get ceil(m / n) of the m examples each. The last replicas get fewer or none, as in
            TensorFlow. So the function that `run` calls must accept an empty batch: write ``x.reshape(len(x), 64)``,
            because ``x.reshape(len(x), -1)`` fails for no rows.

            ``"pad"``: every batch is padded to the size of the first one and becomes a pair ``(batch, mask)``; a larger
            batch raises `StructureError`. The mask ``bool[batch]`` is True for real examples. All batches have one
            shape, so an epoch needs one compilation. Apply the mask to every sum over examples, otherwise padding
            counts as examples: losses (``average_loss(losses, sample_weight=mask)``), metrics
            (``update_state(y, p, sample_weight=mask)``), batch statistics (Keras: ``normalize(x, mask=mask)``).

            ``"drop"``: batches smaller than the first are dropped, except the rest of a batch of another size in which
            a restored position lies.
        prefetch: Number of batches placed on devices ahead of the step. None: the number of replicas. 0: none, and no
            thread.
        batch_size: The global batch size, for sources of single examples (a NumPy pytree, a Hugging Face dataset).
        stall_seconds: A longer wait for input is logged as a warning.

    Example:
        >>> import numpy as np
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> options = mr.InputOptions(batch_size=4, last_batch="pad")
        >>> x = np.arange(6, dtype=np.float32)
        >>> for batch, mask in strategy.experimental_distribute_dataset({"x": x}, options):
        ...     print(strategy.gather(batch, axis=0)["x"], strategy.gather(mask, axis=0))
        [0. 1. 2. 3.] [ True  True  True  True]
        [4. 5. 5. 5.] [ True  True False False]

    TensorFlow: `tf.distribute.InputOptions`, plus the last four.
    """

    experimental_fetch_to_device: bool = True
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1
    last_batch: LastBatch = "split"
    prefetch: int | None = None
    batch_size: int | None = None
    stall_seconds: float = 10.0

    def ahead(self, num_replicas: int) -> int:
        """Returns how many batches are prefetched to the devices before the training step requests them."""
        return self.prefetch if self.prefetch is not None else num_replicas * self.experimental_per_replica_buffer_size

    def check(self, called: str, from_function: bool) -> None:
        """Raises an error if an option is invalid, or has no effect in combination with other options.

        Raises:
            ArgumentError: An option has an invalid value, or has no effect.
            UnsupportedOptionError: The mode is PER_REPLICA outside `distribute_datasets_from_function`.
        """
        check_last_batch(self.last_batch, called)
        per_replica = self.experimental_replication_mode is InputReplicationMode.PER_REPLICA
        if per_replica and not from_function:
            raise UnsupportedOptionError(
                called,
                found="experimental_replication_mode is PER_REPLICA",
                rule="InputReplicationMode.PER_REPLICA is only supported in `distribute_datasets_from_function`",
                remedy="omit experimental_replication_mode, or call distribute_datasets_from_function",
            )
        if self.experimental_place_dataset_on_device and not per_replica:
            raise ArgumentError(
                called,
                found=f"the replication mode is {self.experimental_replication_mode.name}",
                rule="`experimental_place_dataset_on_device` requires the replication mode PER_REPLICA",
                remedy="omit experimental_place_dataset_on_device",
            )
        if self.experimental_place_dataset_on_device and self.experimental_fetch_to_device:
            raise ArgumentError(
                called,
                found="both options are True",
                rule="`experimental_place_dataset_on_device` can not be set together with "
                "`experimental_fetch_to_device`",
                remedy="pass experimental_fetch_to_device=False, or omit experimental_place_dataset_on_device",
            )
        if from_function and self.last_batch != "split":
            raise ArgumentError(
                called,
                found=f"last_batch={self.last_batch!r} was passed",
                rule="last_batch applies to global batches, and the dataset of this function has per-replica batches",
                remedy="omit last_batch, or distribute global batches with experimental_distribute_dataset",
            )
        for name, is_valid, rule in (
            ("prefetch", self.prefetch is None or self.prefetch >= 0, "at least 0"),
            ("experimental_per_replica_buffer_size", self.experimental_per_replica_buffer_size >= 1, "at least 1"),
            ("stall_seconds", self.stall_seconds > 0, "more than 0"),
        ):
            if not is_valid:
                raise ArgumentError(
                    called,
                    found=f"{name}={getattr(self, name)}",
                    rule=f"{name} must be {rule}",
                    remedy=f"pass a larger {name}, or omit it",
                )


class InputContext:
    """The argument of a dataset function: says which input pipeline to build, and for how many replicas.

    A dataset function is the function passed to `Strategy.distribute_datasets_from_function`.

    Args:
        num_input_pipelines: Number of input pipelines.
        input_pipeline_id: Index of this pipeline, counted from 0.
        num_replicas_in_sync: Total number of replicas.

    Example:
        >>> InputContext(1, 0, 4).get_per_replica_batch_size(32)
        8

    TensorFlow: `tf.distribute.InputContext`.
    """

    def __init__(self, num_input_pipelines: int = 1, input_pipeline_id: int = 0, num_replicas_in_sync: int = 1) -> None:
        self._num_input_pipelines = num_input_pipelines
        self._input_pipeline_id = input_pipeline_id
        self._num_replicas_in_sync = num_replicas_in_sync

    @property
    def num_input_pipelines(self) -> int:
        """The number of input pipelines, i.e. of calls of the dataset function."""
        return self._num_input_pipelines

    @property
    def input_pipeline_id(self) -> int:
        """The index, from 0, of the input pipeline that this call of the dataset function builds."""
        return self._input_pipeline_id

    @property
    def num_replicas_in_sync(self) -> int:
        """The total number of replicas on all workers."""
        return self._num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the per-replica batch size: `global_batch_size` divided by the number of replicas.

        Raises:
            ArgumentError: `global_batch_size` is not divisible by the number of replicas.
        """
        if global_batch_size % self._num_replicas_in_sync:
            raise ArgumentError(
                "InputContext.get_per_replica_batch_size",
                found=f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self._num_replicas_in_sync}",
                rule="every replica must get batches of the same size",
                remedy="choose a multiple of it, or use experimental_distribute_dataset, which splits any batch",
            )
        return global_batch_size // self._num_replicas_in_sync

    def __str__(self) -> str:
        which, count = self._input_pipeline_id, self._num_input_pipelines
        return f"tf.distribute.InputContext(input pipeline id {which}, total: {count})"
