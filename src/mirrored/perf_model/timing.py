"""Measures the time of device computations, and the compute rate and memory bandwidth of a device."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Times calls that run on devices.

_WARM_UP, _FEWEST, _MOST, _ENOUGH_SECONDS = 3, 5, 200, 0.5


@dataclasses.dataclass(frozen=True)
class Timing:
    """The median time and the dispatch time of repeated calls of a device computation.

    Attributes:
        seconds: The median time until the result is ready.
        dispatch_seconds: The lower quartile of the calling thread's CPU time until the call returns. (The lower
            quartile excludes two effects on CPUs that are not dispatch: some calls compute before they return, and the
            devices that start first preempt the thread that starts the others.)
    """

    seconds: float
    dispatch_seconds: float


def timed(call: Callable[[], Any]) -> Timing:
    """Measures the time of a call by repeating it for about half a second, after three warm-up calls.

    It makes at least five calls. The warm-up calls also compile.
    """
    for _ in range(_WARM_UP):
        jax.block_until_ready(call())
    seconds: list[float] = []
    dispatch: list[float] = []
    end = time.perf_counter() + _ENOUGH_SECONDS
    while len(seconds) < _FEWEST or (len(seconds) < _MOST and time.perf_counter() < end):
        start, busy = time.perf_counter(), time.thread_time()
        result = call()
        dispatch.append(time.thread_time() - busy)
        jax.block_until_ready(result)
        seconds.append(time.perf_counter() - start)
    return Timing(statistics.median(seconds), lower_quartile(dispatch))


def lower_quartile(values: list[float]) -> float:
    """Returns the lower quartile (25th percentile) of a list of numbers."""
    return sorted(values)[(len(values) - 1) // 4]


# Measures the compute rate and the memory bandwidth of this machine.

_SIDE = 1024
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """The measured compute rate and memory bandwidth of one device.

    The two rates serve to compare the costs of programs that cannot run here.

    Attributes:
        flops_per_second: The rate of a large matrix product in float32.
        bytes_per_second: The bytes read and written per second by an elementwise operation on large arrays.
    """

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Returns how long the device takes for `flops` floating-point operations and for moving `moved_bytes` bytes.

        Both run at full speed, without overlap of the two.
        """
        return flops / self.flops_per_second + moved_bytes / self.bytes_per_second


def measure_machine() -> Machine:
    """Measures the compute rate and memory bandwidth of the first device, in about a second."""
    a = jnp.ones((_SIDE, _SIDE), jnp.float32)
    large = jnp.ones((16 * _MIB,), jnp.float32)
    product, sum_ = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1.0)
    return Machine(
        flops_per_second=2 * _SIDE**3 / timed(lambda: product(a)).seconds,
        bytes_per_second=2 * large.nbytes / timed(lambda: sum_(large)).seconds,
    )
