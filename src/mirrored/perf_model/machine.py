"""Measures the compute rate and the memory bandwidth of this machine."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from mirrored.perf_model.timing import timed

_SIDE = 1024
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """The rates of one device, used to compare costs of programs that cannot run here.

    Attributes:
        flops_per_second: The rate of a large matrix product in float32.
        bytes_per_second: The bytes read and written per second by an elementwise operation on large arrays.
    """

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Returns the time of this work at full speed, without overlap of compute and memory traffic."""
        return flops / self.flops_per_second + moved_bytes / self.bytes_per_second


def measure_machine() -> Machine:
    """Measures the rates of the first device. Takes about a second."""
    a = jnp.ones((_SIDE, _SIDE), jnp.float32)
    large = jnp.ones((16 * _MIB,), jnp.float32)
    product, sum_ = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1.0)
    return Machine(
        flops_per_second=2 * _SIDE**3 / timed(lambda: product(a)).seconds,
        bytes_per_second=2 * large.nbytes / timed(lambda: sum_(large)).seconds,
    )
