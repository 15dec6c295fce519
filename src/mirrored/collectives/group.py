"""`Group`, which describes how replicas are placed on the devices of a mesh axis."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Group:
    """The replicas of a reduction, as the `shard_map` body of one device sees them.

    There are R = `devices` x `local` replicas. Replica r is virtual replica ``r % local`` of device ``r // local``.
    (The code calls several replicas per device *folding*, and those of one device *local* replicas.)

    Attributes:
        axis: The mesh axis of the devices. None if there is one device, which needs no collectives.
        devices: D, the size of the axis.
        local: K, the number of virtual replicas per device.
        spans_processes: Whether the devices belong to several processes. Each buffer then costs a separate message.
    """

    axis: str | None
    devices: int
    local: int
    spans_processes: bool = False

    @property
    def num_replicas(self) -> int:
        """R, the number of replicas."""
        return self.devices * self.local
