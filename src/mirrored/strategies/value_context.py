"""What a function that makes per-replica values is told."""

from __future__ import annotations


class ValueContext:
    """Which replica a value is made for.

    Attributes:
        replica_id_in_sync_group: Which replica, from 0.
        num_replicas_in_sync: How many there are.

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
