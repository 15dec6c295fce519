"""A microbenchmark of all-reduces between this machine's devices, in a program that also computes."""

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
    """The measured times of all-reduces of two sizes over some devices of this machine.

    Each time is the amount by which the all-reduces prolong a program that also computes.

    Attributes:
        devices: The number of participating devices.
        tiny_seconds: The time of an all-reduce of arrays with one element each.
        large_seconds: The time of an all-reduce of the same number of arrays, of `large_bytes` in total.
        large_bytes: The total size of the arrays on each device.
    """

    devices: int
    tiny_seconds: float
    large_seconds: float
    large_bytes: int

    def seconds(self, exchange: Exchange) -> float:
        """Returns the time of an all-reduce of a given size, interpolated from the two measured sizes."""
        if exchange.group_size < 2:
            return 0.0
        part = exchange.payload_bytes / self.large_bytes
        return exchange.times * (self.tiny_seconds + part * max(self.large_seconds - self.tiny_seconds, 0.0))

    @property
    def network(self) -> Network:
        """The bandwidth and latency estimated from the measured times, to predict times for other device counts."""
        size = self.devices
        latency = self.tiny_seconds / (2 * math.ceil(math.log2(size)))
        added = max(self.large_seconds - self.tiny_seconds, 1e-9)
        return Network(2 * (size - 1) / size * self.large_bytes / added, latency)


def benchmark_allreduce(devices: Sequence[jax.Device], payload_bytes: int, arrays: int) -> AllReduceBenchmark:
    """Measures how long all-reduces between devices of this process take; needs about two seconds.

    An isolated all-reduce of ready buffers does not represent a step, where replicas arrive at different times and then
    resume other work. So the benchmark measures by how much an all-reduce prolongs a program that computes. On 8
    simulated devices and 2 cores, 0.4 MB in one array add 0.5 ms, in five arrays 1.0 ms (and 1.3 ms if matrix products
    come before).

    Args:
        devices: At least two devices.
        payload_bytes: The size of the large all-reduce, unless it is too small to distinguish from the tiny one.
        arrays: The number of arrays in one all-reduce.
    """
    each = -(-max(payload_bytes, _SMALLEST_BYTES) // (4 * arrays))
    mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
    tiny, whole = (_added(mesh, [size] * arrays) for size in (1, each))
    return AllReduceBenchmark(len(devices), tiny, whole, 4 * each * arrays)


def _added(mesh: Mesh, sizes: Sequence[int]) -> float:
    """Returns how many seconds longer a program takes if it also all-reduces arrays of the given sizes."""
    with_sum, without = (timed(_program(mesh, sizes, exchanges)).seconds for exchanges in (True, False))
    return max(with_sum - without, 1e-7)


def _program(mesh: Mesh, sizes: Sequence[int], exchanges: bool) -> Callable[[], Any]:
    """Returns a function that, like a training step, runs a matrix product, an all-reduce and an update per array."""

    def body(weights: Sequence[Any], matrix: jax.Array) -> Any:
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
