"""How long devices of this machine take to sum what they hold, in the midst of a program: measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored.perf_model.exchange import Exchange, Network
from mirrored.perf_model.timing import timed

_AXIS = "sum"
_SIDE = 32
_SMALLEST_BYTES = 2**18


@dataclasses.dataclass(frozen=True)
class AllReduceBenchmark:
    """What sums over devices of this machine add to a program.

    Attributes:
        devices: How many take part.
        tiny_seconds: A sum of arrays of one number each.
        large_seconds: A sum of as many arrays of `large_bytes` together.
        large_bytes: What each device holds of them.
    """

    devices: int
    tiny_seconds: float
    large_seconds: float
    large_bytes: int

    def seconds(self, exchange: Exchange) -> float:
        """How long an exchange takes between these devices: on the line through the two that were measured."""
        if exchange.group_size < 2:
            return 0.0
        part = exchange.payload_bytes / self.large_bytes
        return exchange.times * (self.tiny_seconds + part * max(self.large_seconds - self.tiny_seconds, 0.0))

    @property
    def network(self) -> Network:
        """The network that would take as long, for other numbers of devices: `Exchange.seconds` backwards."""
        size = self.devices
        latency = self.tiny_seconds / (2 * math.ceil(math.log2(size)))
        added = max(self.large_seconds - self.tiny_seconds, 1e-9)
        return Network(2 * (size - 1) / size * self.large_bytes / added, latency)


def benchmark_allreduce(devices: Sequence[jax.Device], payload_bytes: int, arrays: int) -> AllReduceBenchmark:
    """Measures sums over devices of this process. Takes about two seconds.

    A sum alone, of buffers that are there, is not what a step sees: there replicas come to it from their work, at
    different times and with other work to wake up for. Measured is by how much a program that computes gets longer.
    On 8 simulated devices and 2 cores, 0.4 MB in one array add 0.5 ms, in five arrays 1.0 ms (and 1.3 ms if matrix
    products come before).

    Args:
        devices: At least two.
        payload_bytes: The size that matters, which the large sum has, if it is not too small to tell from a tiny one.
        arrays: Of how many arrays.
    """
    each = -(-max(payload_bytes, _SMALLEST_BYTES) // (4 * arrays))
    mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
    tiny, whole = (_added(mesh, [size] * arrays) for size in (1, each))
    return AllReduceBenchmark(len(devices), tiny, whole, 4 * each * arrays)


def _added(mesh: Mesh, sizes: Sequence[int]) -> float:
    """Seconds by which the sum of such arrays makes a program longer."""
    with_sum, without = (timed(_program(mesh, sizes, exchanges)).seconds for exchanges in (True, False))
    return max(with_sum - without, 1e-7)


def _program(mesh: Mesh, sizes: Sequence[int], exchanges: bool) -> Callable[[], Any]:
    """A step of nothing: a product for each array and its update, with the sum between, or without."""

    def body(weights: Sequence[Any], matrix: Any) -> Any:
        gradients = [jnp.sin(one * jnp.max(jnp.tanh(matrix * one[0]) @ matrix)) for one in weights]
        totals = jax.lax.psum(gradients, _AXIS) if exchanges else gradients
        return [one - 1e-6 * total for one, total in zip(weights, totals, strict=True)]

    each, same = PartitionSpec(_AXIS), PartitionSpec()
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(each, same), out_specs=each, check_vma=False)
    compiled = jax.jit(mapped, donate_argnums=0)
    held = NamedSharding(mesh, each)
    weights = [jax.device_put(np.full(mesh.size * size, 0.5, np.float32), held) for size in sizes]
    matrix = jax.device_put(np.full((_SIDE, _SIDE), 0.01, np.float32), NamedSharding(mesh, same))

    def call() -> Any:
        nonlocal weights
        weights = compiled(weights, matrix)
        return weights

    return call
