"""Host-to-device overlap: a loop of steps over a distributed dataset, beside the same steps on resident batches.

The same loop written over `jax.device_put`, one batch ahead, is the hand-written contender.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr
from gpu.contest import TINY
from gpu.recording import Recorder
from mirrored.data import Dataset

# 64 MiB a batch, and products of about the time that a copy of it takes.
_ROWS, _WIDTH, _LAYERS, _BATCHES = (32, 16, 2, 4) if TINY else (16384, 1024, 16, 24)
_ROUNDS = 2 if TINY else 6


def measure(recorder: Recorder) -> None:
    """Rounds in which each loop runs once."""
    with recorder.variant("overlap") as figures:
        loops = _loops()
        for loop in loops.values():
            loop()
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for round_ in range(_ROUNDS):
            for name in list(loops)[:: 1 if round_ % 2 == 0 else -1]:
                start = time.perf_counter()
                loops[name]()
                seconds[name].append((time.perf_counter() - start) / _BATCHES)
        figures |= {"seconds": seconds, "batch_mib": _ROWS * _WIDTH * 4 / 2**20}
        figures["step_share"] = _share(seconds["resident"], seconds["mirrored"])
        figures["hand_written_step_share"] = _share(seconds["resident"], seconds["hand-written"])


def _share(part: list[float], whole: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(part, whole, strict=True))


def _loops() -> dict[str, Callable[[], None]]:
    rows = np.random.default_rng(0).standard_normal((_BATCHES * _ROWS, _WIDTH), np.float32)
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    with strategy.scope():
        w = mr.Variable(np.eye(_WIDTH, dtype=np.float32))

    def work(x: Any, w: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        for _ in range(_LAYERS):
            x = jnp.tanh(x @ w.astype(jnp.bfloat16))
        return x.astype(jnp.float32).mean()

    step = mr.function(lambda x: strategy.run(lambda x: work(x, w.read_value()), args=(x,)))
    jitted = jax.jit(work)
    weights = jnp.eye(_WIDTH, dtype=jnp.float32)
    dataset = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(rows).batch(_ROWS))
    resident = next(iter(dataset))

    def slices() -> Iterator[Any]:
        following = jax.device_put(rows[:_ROWS])
        for k in range(1, _BATCHES):
            now, following = following, jax.device_put(rows[k * _ROWS : (k + 1) * _ROWS])
            yield now
        yield following

    def loop(batches: Callable[[], Iterable[Any]], of: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            for batch in batches():
                result = of(batch)
            jax.block_until_ready(strategy.local_results(result) if of is step else result)

        return run

    return {
        "resident": loop(lambda: [resident] * _BATCHES, step),
        "mirrored": loop(lambda: dataset, step),
        "hand-written": loop(slices, lambda x: jitted(x, weights)),
    }
