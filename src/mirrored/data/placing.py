"""Places batches on the replicas' devices, with the sharding that a compiled step expects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mirrored._jax.host_memory import owned
from mirrored._jax.putting import put, put_rows
from mirrored.data.splitting import share_bounds
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values.distributed_values import PerReplica


@dataclasses.dataclass(frozen=True)
class Placer:
    """Creates per-replica values from host batches.

    Attributes:
        device_assignment: The device of each replica; None: one replica, on JAX's default device.
        to_device: Whether to place components on devices. If False, they stay in host memory.
        own_batches: With several workers: whether each worker reads separate batches for its own replicas. The workers
            coordinate their shapes later (`mirrored.data.worker_steps`). If False, all workers read the same global
            batches, and each keeps the per-replica batches of its own replicas.
    """

    device_assignment: DeviceAssignment | None
    to_device: bool = True
    own_batches: bool = False

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return 1 if self.device_assignment is None else self.device_assignment.num_replicas

    def batch(self, batch: Any) -> Any:
        """Splits a global batch (whose leaves have equal sizes) into per-replica batches, and places them.

        Per-replica batches of equal size become one array ``[replicas, per_replica_batch, ...]``, sharded over all
        devices; otherwise they become a tuple of arrays. Devices alias memory that the pipeline owns if they can read
        it. Other memory is copied, since the source may reuse it. With one replica, the result is a plain array.
        """
        if self.device_assignment is None or self.device_assignment.num_replicas == 1:
            return jax.tree.map(lambda leaf: self._put(leaf, 0), batch)
        leaves, treedef = jax.tree_util.tree_flatten(batch)
        count = leaves[0].shape[0]
        shared_by = (
            len(self.device_assignment.addressable_replicas)
            if self.own_batches
            else self.device_assignment.num_replicas
        )
        even = bool(count) and count % shared_by == 0
        if even and self.to_device and not self.own_batches:
            return jax.tree_util.tree_unflatten(treedef, self._stacked(leaves, shared_by, count // shared_by))
        bounds = share_bounds(count, shared_by)
        if not self.own_batches:
            bounds = [bounds[replica] for replica in self.device_assignment.addressable_replicas]
        # A process does not see the shapes on other processes, so it cannot tell later whether all are equal.
        ragged = self.device_assignment.spans_processes and not even
        return jax.tree.map(lambda leaf: self._components([leaf[low:high] for low, high in bounds], ragged), batch)

    def elements(self, elements: Sequence[Any]) -> Any:
        """Combines one element per replica of this process to a per-replica value; with one replica, the element."""
        if self.num_replicas == 1:
            return jax.tree.map(lambda leaf: self._put(leaf, 0), elements[0])
        return jax.tree.map(lambda *leaves: self._components(leaves), *elements)

    def _stacked(self, leaves: list[Any], shared_by: int, size: int) -> list[Any]:
        assert self.device_assignment is not None
        sharding = self.device_assignment.sharded
        if any(leaf.dtype.hasobject for leaf in leaves):
            here = self.device_assignment.addressable_replicas
            parts = [np.split(owned(leaf), shared_by) for leaf in leaves]
            return [PerReplica([part[r] for r in here], self.device_assignment) for part in parts]
        rows = [leaf.reshape(shared_by, size, *leaf.shape[1:]) for leaf in leaves]
        if sharding.is_fully_addressable:
            placed = [put_rows(leaf, sharding, self.device_assignment.devices) for leaf in rows]
        else:
            copies = [owned(leaf) for leaf in rows]
            placed = [jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__) for leaf in copies]
        return [PerReplica.from_stacked(array, self.device_assignment) for array in placed]

    def _components(self, batches: Sequence[Any], is_ragged: bool = False) -> PerReplica:
        assert self.device_assignment is not None
        replicas = self.device_assignment.addressable_replicas
        placed = [self._put(batch, replica) for batch, replica in zip(batches, replicas, strict=True)]
        return PerReplica(placed, self.device_assignment, is_ragged=is_ragged)

    def _put(self, leaf: Any, replica: int) -> Any:
        if getattr(leaf, "dtype", np.dtype(object)).hasobject:
            return owned(leaf)
        if not self.to_device:
            return put(leaf, jax.local_devices(backend="cpu")[0])
        return put(leaf, None if self.device_assignment is None else self.device_assignment.device_of(replica))
