"""Measures how long all-reduces take, over all devices and between pairs of neighbouring workers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LARGE_BYTES: Final = 4 * 2**20
_SMALL_ROUNDS: Final = 20
_LARGE_ROUNDS: Final = 5


@dataclasses.dataclass(frozen=True)
class Link:
    """The measured latency and bandwidth of an all-reduce over the devices of some workers.

    Attributes:
        workers: The indices of the workers.
        latency_seconds: The shortest time for four bytes: longer times come from the load of the machine.
        bytes_per_second: The size of the buffer divided by the shortest time, for 4 MiB per device.
    """

    workers: tuple[int, ...]
    latency_seconds: float
    bytes_per_second: float


def measure(workers: Sequence[int], devices: Sequence[jax.Device]) -> Link | None:
    """Measures the latency and bandwidth of an all-reduce over the devices of some workers.

    Context: all workers that own one of the devices, at the same time.

    Args:
        workers: The workers that own the devices.
        devices: The devices of the all-reduce.

    Returns:
        None on workers that own none of the devices.
    """
    here = jax.process_index()
    own = [device for device in devices if device.process_index == here]
    if not own:
        return None
    mesh = Mesh(np.array(devices), ("link",), axis_types=(AxisType.Auto,))
    small = _quickest_seconds(mesh, own, 1, _SMALL_ROUNDS)
    large = _quickest_seconds(mesh, own, LARGE_BYTES // 4, _LARGE_ROUNDS)
    return Link(tuple(workers), small, LARGE_BYTES / large)


def _quickest_seconds(mesh: Mesh, own: Sequence[jax.Device], size: int, rounds: int) -> float:
    sharding = NamedSharding(mesh, P("link"))
    parts = [jax.device_put(np.ones((1, size), np.float32), device) for device in own]
    value = jax.make_array_from_single_device_arrays((mesh.size, size), sharding, parts)

    def add(x: jax.Array) -> Any:
        return jax.lax.psum(x, "link")

    reduce = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=P("link"), out_specs=P(None), check_vma=False))
    jax.block_until_ready(reduce(value))
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(reduce(value))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def neighbours(count: int) -> list[tuple[int, int]]:
    """Returns the pairs of neighbouring workers in a ring, between which all-reduces are measured."""
    if count < 2:
        return []
    return [(0, 1)] if count == 2 else [(worker, (worker + 1) % count) for worker in range(count)]
