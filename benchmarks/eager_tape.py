"""Eager tape time per operation, forward plus backward, against un-jitted `jax.grad` and a list of compiled pairs.

Each round differentiates a chain of 200 scalar operations with every contender in turn, in one process. The figures are
medians over the rounds; the ratio is the median of the rounds' ratios.
`python benchmarks/eager_tape.py [rounds]` prints them.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mirrored.tape import GradientTape

OPERATIONS = 200


@dataclasses.dataclass(frozen=True)
class Result:
    """Medians over the rounds, in microseconds per operation.

    Attributes:
        tape_us: The mirrored tape.
        grad_us: Un-jitted `jax.grad`.
        floor_us: A hand-written list of jitted operations and pullbacks: two dispatches for each operation.
        ratio: `tape_us` / `grad_us`, the median of the rounds' own ratios.
    """

    tape_us: float
    grad_us: float
    floor_us: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"eager tape {self.tape_us:.1f} us/op, un-jitted jax.grad {self.grad_us:.1f} us/op, "
            f"two bare dispatches {self.floor_us:.1f} us/op; tape / jax.grad = {self.ratio:.3f}"
        )


def chain(x: jax.Array, y: jax.Array) -> jax.Array:
    """Computes 200 scalar operations."""
    for _ in range(OPERATIONS // 4):
        y = y * x
        y = y + x
        y = y * 0.5
        y = y - x
    return y


def _by_tape(x: jax.Array, y: jax.Array) -> jax.Array:
    with GradientTape() as tape:
        tape.watch(x)
        result = chain(x, y)
    gradient: jax.Array = tape.gradient(result, x)
    return gradient


def _by_floor(x: jax.Array, y: jax.Array) -> jax.Array:
    records = []
    for k in range(OPERATIONS):
        records.append((_BACK[k % 4], y))
        y = _FORWARD[k % 4](y, x)
    ct, total = _ONE, None
    for back, value in reversed(records):
        ct, of_x = back(value, x, ct)
        total = of_x
    assert total is not None
    return total


_FORWARD = [jax.jit(f) for f in (jnp.multiply, jnp.add, lambda y, x: y * 0.5, jnp.subtract)]
_BACK = [
    jax.jit(f)
    for f in (
        lambda y, x, ct: (ct * x, ct * y),
        lambda y, x, ct: (ct, ct),
        lambda y, x, ct: (ct * 0.5, ct),
        lambda y, x, ct: (ct, -ct),
    )
]
_ONE = jnp.float32(1.0)


def measure(rounds: int = 15) -> Result:
    """Measures the contenders in turn."""
    x, y = jnp.float32(1.01), jnp.float32(0.7)
    contenders: list[Callable[[jax.Array, jax.Array], jax.Array]] = [_by_tape, jax.grad(chain), _by_floor]
    for contender in contenders:
        contender(x, y).block_until_ready()
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for contender, seconds in zip(contenders, times, strict=True):
            start = time.perf_counter()
            contender(x, y).block_until_ready()
            seconds.append((time.perf_counter() - start) / OPERATIONS * 1e6)
    ratio = statistics.median(tape / grad for tape, grad in zip(times[0], times[1], strict=True))
    tape_us, grad_us, floor_us = (statistics.median(seconds) for seconds in times)
    return Result(tape_us, grad_us, floor_us, ratio)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=15)
    print(measure(parser.parse_args().rounds))
