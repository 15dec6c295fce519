"""Options of distributed datasets."""

from __future__ import annotations

import dataclasses
import enum

from mirrored.data.splitting import LastBatch, check_last_batch
from mirrored.errors import ArgumentError


class InputReplicationMode(enum.Enum):
    """How often `distribute_datasets_from_function` calls its function.

    Attributes:
        PER_WORKER: Once per process; the elements go to its replicas in turn.
        PER_REPLICA: Once per replica, which gets all elements of its dataset.

    TensorFlow: `tf.distribute.InputReplicationMode`.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """How a dataset is distributed.

    Args:
        experimental_fetch_to_device: Whether batches are put on the replicas' devices; else they stay in host memory.
        experimental_replication_mode: See `InputReplicationMode`.
        experimental_place_dataset_on_device: TensorFlow's; refused in the combinations that TensorFlow refuses.
        experimental_per_replica_buffer_size: Batches ahead per replica.
        last_batch: What happens to a batch that is smaller than the first one, or does not divide by the replicas.
            ``"split"``: shares of ceil(m / n) examples, the last ones smaller or empty, as in TensorFlow. ``"pad"``:
            every batch is filled up to one size and comes as ``(batch, mask)``; the mask ``bool[batch]`` is True for
            real examples, so that an epoch runs with one compilation. Whatever adds up over examples needs it: losses
            (``average_loss(losses, sample_weight=mask)``), metrics (``update_state(y, p, sample_weight=mask)``), batch
            statistics (Keras: ``normalize(x, mask=mask)``); else the copies count as examples. ``"drop"``:
            batches smaller than the first are left out.
        prefetch: Batches that are placed ahead; None: as many as there are replicas. 0: none, and no thread.
        batch_size: For sources of single examples (a NumPy pytree, a Hugging Face dataset): the global batch size.
        stall_seconds: A wait for input of this length is reported in the log.

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
        """How many batches are placed ahead."""
        return self.prefetch if self.prefetch is not None else num_replicas * self.experimental_per_replica_buffer_size

    def check(self, called: str, from_function: bool) -> None:
        """Refuses values and combinations that mean nothing.

        Raises:
            ArgumentError: For example PER_REPLICA outside `distribute_datasets_from_function`.
        """
        check_last_batch(self.last_batch, called)
        per_replica = self.experimental_replication_mode is InputReplicationMode.PER_REPLICA
        wrong = None
        if per_replica and not from_function:
            wrong = "InputReplicationMode.PER_REPLICA is only supported in `distribute_datasets_from_function`"
        elif self.experimental_place_dataset_on_device and not per_replica:
            wrong = "`experimental_place_dataset_on_device` needs the replication mode PER_REPLICA"
        elif self.experimental_place_dataset_on_device and self.experimental_fetch_to_device:
            wrong = "`experimental_place_dataset_on_device` can not be set together with `experimental_fetch_to_device`"
        elif from_function and self.last_batch != "split":
            wrong = f'last_batch="{self.last_batch}" cuts global batches, and this function gives batches per replica'
        elif (self.prefetch or 0) < 0 or self.experimental_per_replica_buffer_size < 1 or self.stall_seconds <= 0:
            wrong = "prefetch is at least 0, the buffer size at least 1, stall_seconds more than 0"
        if wrong is not None:
            raise ArgumentError(called, found=f"{self}", rule=wrong, remedy="see mirrored.data.InputOptions")


class InputContext:
    """What a dataset function is told.

    Args:
        num_input_pipelines: How many pipelines feed the replicas.
        input_pipeline_id: Which of them this is, from 0.
        num_replicas_in_sync: How many replicas there are in all.

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
        """How many pipelines feed the replicas."""
        return self._num_input_pipelines

    @property
    def input_pipeline_id(self) -> int:
        """Which of them this is."""
        return self._input_pipeline_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are in all."""
        return self._num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of one replica.

        Raises:
            ArgumentError: The global one does not divide by the replicas.
        """
        if global_batch_size % self._num_replicas_in_sync:
            raise ArgumentError(
                "InputContext.get_per_replica_batch_size",
                found=f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self._num_replicas_in_sync}",
                rule="every replica gets batches of the same size",
                remedy="choose a multiple, or use experimental_distribute_dataset, which splits any batch",
            )
        return global_batch_size // self._num_replicas_in_sync

    def __str__(self) -> str:
        which, count = self._input_pipeline_id, self._num_input_pipelines
        return f"tf.distribute.InputContext(input pipeline id {which}, total: {count})"
