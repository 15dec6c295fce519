"""How fast the machine at hand computes and moves memory: measured, not looked up."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from mirrored.perf_model.timing import timed

_SIDE = 1024
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """What weighs computing against moving bytes, where work is compared that cannot be run here.

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
    """Measures the first device. Takes about a second."""
    a = jnp.ones((_SIDE, _SIDE), jnp.float32)
    large = jnp.ones((16 * _MIB,), jnp.float32)
    product, sum_ = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1.0)
    return Machine(
        flops_per_second=2 * _SIDE**3 / timed(lambda: product(a)).seconds,
        bytes_per_second=2 * large.nbytes / timed(lambda: sum_(large)).seconds,
    )
