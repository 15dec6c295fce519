"""`ValueContext`: the argument of a function that creates per-replica values."""

from __future__ import annotations


class ValueContext:
    """Identifies the replica for which a value is created.

    Attributes:
        replica_id_in_sync_group: The index of the replica.
        num_replicas_in_sync: The number of replicas.

    TensorFlow: `tf.distribute.experimental.ValueContext`.
    """

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self.replica_id_in_sync_group = replica_id_in_sync_group
        self.num_replicas_in_sync = num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.ValueContext(replica id {self.replica_id_in_sync_group},  "
            f"total replicas in sync: {self.num_replicas_in_sync})"
        )
