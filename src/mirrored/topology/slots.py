"""`Slots`: the replica slots of a compiled program, equally many on each device, and the replica in each slot."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# R replicas on D devices: a compiled run is one SPMD program, so each device computes K = ceil(R / D) replicas. A place
# for a replica in that program is a *slot*. If D does not divide R, the first devices have K replicas and the others
# one less; the last slot of the others is *empty* (`padded` counts the empty slots). Devices hold consecutive replicas,
# whose numbers differ by at most one, so every device has a replica:
#
#     8 replicas on 3 devices: {0 1 2} {3 4 5} {6 7 -}      6 on 4: {0 1} {2 3} {4 -} {5 -}
#
# An array that is sharded over the devices has one row per slot, because JAX shards evenly. The row of an empty slot is
# unspecified: whatever reads it must drop it. An empty slot computes with a copy of the row before it instead of zeros,
# because zeros could make a loop of the replica function run for ever, or give NaNs where NaNs raise errors.


@dataclasses.dataclass(frozen=True)
class Slots:
    """The replica slots of a compiled program: positions for replicas, equally many on each device.

    If the number of replicas is not a multiple of the number of devices, the last slot of some devices is *empty*: it
    holds no replica. For example, 8 replicas on 3 devices are in the slots ``{0 1 2} {3 4 5} {6 7 -}``.

    Attributes:
        devices: The number of devices (D), at most R.
        replicas: The number of replicas (R).
    """

    devices: int
    replicas: int

    @functools.cached_property
    def local(self) -> int:
        """The number of replica slots on each device (K)."""
        return -(-self.replicas // self.devices)

    @functools.cached_property
    def count(self) -> int:
        """The number of replica slots on all devices (D * K), including empty slots."""
        return self.devices * self.local

    @functools.cached_property
    def padded(self) -> int:
        """The number of slots without a replica; each of the last `padded` devices has one such slot."""
        return self.count - self.replicas

    @functools.cached_property
    def full(self) -> int:
        """The number of devices whose slots all hold a replica; these devices come first."""
        return self.devices - self.padded

    def first_on(self, device: int) -> int:
        """Returns the index of the first replica on the device with index `device`."""
        return device * (self.local - 1) + min(device, self.full)

    def number_on(self, device: int) -> int:
        """Returns the number of replicas on the device with index `device`."""
        return self.local - (device >= self.full)

    def device_of(self, replica: int) -> int:
        """Returns the index of the device that holds a replica."""
        return self.of(replica) // self.local

    def of(self, replica: int) -> int:
        """Returns the index of a replica's slot among the slots of all devices."""
        return self._of[replica]

    @functools.cached_property
    def _of(self) -> tuple[int, ...]:
        return tuple(device * self.local + k for device in range(self.devices) for k in range(self.number_on(device)))

    def rows(self, stacked: Any) -> Any:
        """Selects the replicas' rows of an array with one row per slot; drops the rows of slots without a replica."""
        if not self.padded:
            return stacked
        several = np if isinstance(stacked, np.ndarray) else jnp
        head, tail = stacked[: self.full * self.local], stacked[self.full * self.local :]
        tail = tail.reshape(self.padded, self.local, *tail.shape[1:])[:, :-1]
        return several.concatenate([head, _joined(tail)])

    def stacked(self, rows: Any) -> Any:
        """Converts an array with one row per replica to one row per slot; an empty slot repeats the previous row.

        Gradients do not flow from an empty slot to the row that it repeats: a reduction drops the slot's row, but its
        derivative may give all rows of a device the same cotangent.
        """
        if not self.padded:
            return rows
        several = np if isinstance(rows, np.ndarray) else jnp
        head, tail = rows[: self.full * self.local], rows[self.full * self.local :]
        tail = tail.reshape(self.padded, self.local - 1, *tail.shape[1:])
        repeated = tail[:, -1:]
        repeated = repeated if several is np else jax.lax.stop_gradient(repeated)
        tail = several.concatenate([tail, repeated], axis=1)
        return several.concatenate([head, _joined(tail)])

    def replica_at(self, device: int | jax.Array, local: int) -> Any:
        """Returns the id of the replica in slot `local` of a device. The index `device` may be a tracer.

        For an empty slot this is the replica in the slot before it, which the empty slot repeats.
        """
        if not self.padded:
            return device * self.local + local
        # Explicit minima: a Python int would be promoted, and the id must be an int32.
        first = device * (self.local - 1) + jnp.minimum(device, self.full)
        return first + jnp.minimum(local, jnp.where(device < self.full, self.local - 1, self.local - 2))

    def repeated(self, own: Any, is_real: Any) -> Any:
        """Replaces a device's last row by a copy of the row before, if the device's last slot is empty.

        Gradients do not flow from an empty slot to the row that it repeats.

        Args:
            own: The rows of the device.
            is_real: Whether the device has no empty slot.
        """
        before = jax.lax.stop_gradient(own[-2:-1])
        last = jnp.where(jnp.reshape(is_real, (1,) * own.ndim), own[-1:], before)
        return jnp.concatenate([own[:-1], last])


def _joined(rows: Any) -> Any:
    """Reshapes ``[devices, local, ...]`` to ``[devices * local, ...]``, including arrays without elements."""
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
