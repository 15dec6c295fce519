"""How the values of one reduction lie: over the devices of a mesh axis, several on each."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Group:
    """R = `devices` x `local` replicas, seen from one device inside a `shard_map` body.

    Replica r is local replica ``r % local`` of device ``r // local``.

    Attributes:
        axis: The mesh axis of the devices; None where there is one device, so that no collective is needed.
        devices: D, the size of the axis.
        local: K, the replicas of each device.
        spans_processes: Whether the devices belong to several processes, so that every buffer costs a message of its
            own.
    """

    axis: str | None
    devices: int
    local: int
    spans_processes: bool = False

    @property
    def num_replicas(self) -> int:
        """R."""
        return self.devices * self.local
