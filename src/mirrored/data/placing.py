"""Putting a global batch on the replicas' devices, laid out as a step wants it."""

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
    """Makes per-replica values.

    Attributes:
        layout: Which replica lives on which device; None: one replica, wherever JAX puts it.
        to_device: False leaves the components in host memory.
        own_batches: With several workers: whether each reads batches of its own, for its replicas only; what the
            others have is settled later (`mirrored.data.worker_steps`). Else all read the same global batches, and each
            takes the shares of its replicas.
    """

    device_assignment: DeviceAssignment | None
    to_device: bool = True
    own_batches: bool = False

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return 1 if self.device_assignment is None else self.device_assignment.num_replicas

    def batch(self, batch: Any) -> Any:
        """A global batch (whose leaves agree in size), cut into one share per replica.

        Equal shares become one array ``[replicas, share, ...]`` over all devices; others a tuple of arrays. Memory that
        the pipeline owns is aliased where devices can read it; any other is copied, since the source may refill it.
        With one replica the arrays are plain.
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
        ragged = self.device_assignment.spans_processes and not even
        return jax.tree.map(lambda leaf: self._components([leaf[low:high] for low, high in bounds], ragged), batch)

    def elements(self, elements: Sequence[Any]) -> Any:
        """One element per replica of this process, as a per-replica value; with one replica the element itself."""
        if self.num_replicas == 1:
            return jax.tree.map(lambda leaf: self._put(leaf, 0), elements[0])
        return jax.tree.map(lambda *leaves: self._components(leaves), *elements)

    def _stacked(self, leaves: list[Any], shared_by: int, share: int) -> list[Any]:
        assert self.device_assignment is not None
        sharding = self.device_assignment.sharded
        if any(leaf.dtype.hasobject for leaf in leaves):
            here = self.device_assignment.addressable_replicas
            parts = [np.split(owned(leaf), shared_by) for leaf in leaves]
            return [PerReplica([part[r] for r in here], self.device_assignment) for part in parts]
        rows = [leaf.reshape(shared_by, share, *leaf.shape[1:]) for leaf in leaves]
        if sharding.is_fully_addressable:
            placed = [put_rows(leaf, sharding, self.device_assignment.devices) for leaf in rows]
        else:
            mine = [owned(leaf) for leaf in rows]
            placed = [jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__) for leaf in mine]
        return [PerReplica.from_stacked(array, self.device_assignment) for array in placed]

    def _components(self, shares: Sequence[Any], is_ragged: bool = False) -> PerReplica:
        assert self.device_assignment is not None
        mine = self.device_assignment.addressable_replicas
        placed = [self._put(share, replica) for share, replica in zip(shares, mine, strict=True)]
        return PerReplica(placed, self.device_assignment, is_ragged=is_ragged)

    def _put(self, leaf: Any, replica: int) -> Any:
        if getattr(leaf, "dtype", np.dtype(object)).hasobject:
            return owned(leaf)
        if not self.to_device:
            return put(leaf, jax.local_devices(backend="cpu")[0])
        return put(leaf, None if self.device_assignment is None else self.device_assignment.device_of(replica))
