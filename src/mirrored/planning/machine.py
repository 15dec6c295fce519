"""How fast the machine at hand computes, and how fast its devices exchange: measured, not looked up."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored.planning.exchange import Exchange, Network

_SIDE = 1024
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """What computes a replica's share.

    Attributes:
        flops_per_second: Of a large matrix product in float32.
        bytes_per_second: Read and written by an elementwise operation on large arrays.
    """

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Until so much work is done, if nothing overlaps and everything runs at full speed."""
        return flops / self.flops_per_second + moved_bytes / self.bytes_per_second


def measure_machine() -> Machine:
    """Measures the first device. Takes about half a second."""
    a = jnp.ones((_SIDE, _SIDE), jnp.float32)
    large = jnp.ones((16 * _MIB,), jnp.float32)
    product, sum_ = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1.0)
    return Machine(
        flops_per_second=2 * _SIDE**3 / _typical(lambda: product(a)),
        bytes_per_second=2 * large.nbytes / _typical(lambda: sum_(large)),
    )


def measure_network(devices: Sequence[Any]) -> Network:
    """Measures sums over devices of this process: a tiny one gives the latency, a large one the bandwidth.

    Args:
        devices: At least two.
    """
    mesh = Mesh(np.array(devices), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    total = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )

    def seconds(size: int) -> float:
        array = jax.device_put(np.zeros((len(devices), size), np.float32), NamedSharding(mesh, spec))
        return _typical(lambda: total(array))

    size, small, large = len(devices), seconds(1), seconds(_MIB)
    # Backwards through `Exchange.seconds`: no bandwidth in the small sum, no latency in what the large one adds.
    unit = Network(bandwidth_bytes_per_second=float("inf"), latency_seconds=1.0)
    latency = small / Exchange("psum", size, 4).seconds(unit)
    added = max(large - small, 1e-9)
    return Network(2 * (size - 1) / size * 4 * _MIB / added, latency)


def _typical(call: Callable[[], Any], repeats: int = 7) -> float:
    """The median seconds of a few calls, after one that compiles."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
