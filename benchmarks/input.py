"""Cost of distributed input: batches/s next to a plain loop of `jax.device_put`, and how much of it a step hides.

    python benchmarks/input.py [--rounds 40] [--json FILE]

Batches are ``f32[512, 784]`` over 4 devices. Every pipeline is paired, round by round in one process, with a
hand-written loop for the same work; the figure is the median ratio of times with a 95 % interval. The benchmark waits
for every batch. Reference: `tf.data` with `experimental_distribute_dataset` in TensorFlow 2.21 reaches 920 (rows) and
1,396 (batched) batches/s of this size.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("MIRRORED_VIRTUAL_DEVICES", "4")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import jax
import numpy as np
from pairing import Paired, pair
from rich.console import Console
from rich.table import Table

import mirrored as mr
from mirrored.data import Dataset

BATCH, WIDTH, BATCHES, DEVICES = 512, 784, 16, 4
TENSORFLOW_ROWS, TENSORFLOW_BATCHED = 920.0, 1396.0
STEP_SECONDS, PIPELINE_SECONDS = 0.010, 0.008


@dataclasses.dataclass(frozen=True)
class Contest:
    """One pipeline paired with a hand-written loop."""

    name: str
    ours: Callable[[], Any]
    by_hand: Callable[[], Any]
    target: float
    tensorflow: float


def aligned(values: np.ndarray, offset: int = 0) -> np.ndarray:
    """Returns a copy that begins `offset` bytes after a multiple of 64; at 0 a hand-written loop is fast."""
    raw = np.empty(values.nbytes + 128, np.uint8)
    offset += -raw.ctypes.data % 64
    copy = raw[offset : offset + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


class Endless:
    """A loader that repeats the same batches endlessly."""

    def __init__(self, values: np.ndarray) -> None:
        self._batches = [values[k * BATCH : (k + 1) * BATCH] for k in range(BATCHES)]

    def __iter__(self) -> Iterator[np.ndarray]:
        return itertools.cycle(self._batches)


def drain(batches: Iterator[Any]) -> Callable[[], None]:
    """Returns a function that takes one batch and waits for it."""

    def one() -> None:
        jax.block_until_ready(next(batches))

    return one


def contests(strategy: Any) -> list[Contest]:
    """Returns all pairs of pipelines and loops."""
    rows = np.random.default_rng(0).standard_normal((BATCHES * BATCH, WIDTH), np.float32)
    sharding, source = strategy.device_assignment.sharded, aligned(rows)
    askew = aligned(rows, offset=16)
    dataset, shifted = Dataset.from_tensor_slices(rows), Dataset.from_tensor_slices(askew)

    def slices(values: np.ndarray) -> Iterator[Any]:
        while True:
            for k in range(BATCHES):
                yield jax.device_put(values[k * BATCH : (k + 1) * BATCH], sharding)

    def gathers() -> Iterator[Any]:
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(source))
            for k in range(BATCHES):
                yield jax.device_put(source[order[k * BATCH : (k + 1) * BATCH]], sharding)

    def ours(pipeline: Dataset) -> Callable[[], None]:
        return drain(iter(strategy.experimental_distribute_dataset(pipeline)))

    return [
        Contest("in order", ours(dataset.repeat().batch(BATCH)), drain(slices(source)), 0.9, TENSORFLOW_BATCHED),
        Contest("unaligned", ours(shifted.repeat().batch(BATCH)), drain(slices(askew)), 0.9, TENSORFLOW_BATCHED),
        Contest(
            "shuffled",
            ours(dataset.shuffle(len(rows)).repeat().batch(BATCH)),
            drain(gathers()),
            0.9,
            TENSORFLOW_ROWS,
        ),
        *copying_contests(strategy, dataset, {"": source, ", unaligned": askew}),
    ]


def copying_contests(strategy: Any, dataset: Dataset, sources: dict[str, np.ndarray]) -> list[Contest]:
    """Returns pipelines that copy, because user code may write to the arrays; the hand-written loops copy too."""
    sharding = strategy.device_assignment.sharded

    def put(batches: Iterator[np.ndarray], work: Callable[[np.ndarray], np.ndarray]) -> Callable[[], None]:
        return drain(jax.device_put(work(batch), sharding) for batch in batches)

    def ours(data: Any) -> Callable[[], None]:
        return drain(iter(strategy.experimental_distribute_dataset(data)))

    def double(batch: np.ndarray) -> np.ndarray:
        return batch * np.float32(2)

    loaders = {name: Endless(values) for name, values in sources.items()}
    mapped = dataset.repeat().batch(BATCH).map(double)
    return [
        *(
            Contest(f"loader{name}", ours(loader), put(iter(loader), np.copy), 0.9, TENSORFLOW_BATCHED)
            for name, loader in loaders.items()
        ),
        Contest("mapped", ours(mapped), put(iter(loaders[""]), double), 0.9, TENSORFLOW_BATCHED),
    ]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How well reading overlaps with the step."""

    step_seconds: float
    loop_seconds: float

    @property
    def share(self) -> float:
        """The step's fraction of the loop time; 1 if reading is completely hidden."""
        return self.step_seconds / self.loop_seconds


def overlap(strategy: Any, steps: int, python: bool) -> Overlap:
    """Measures a loop of steps of 10 ms over a pipeline of 8 ms, which waits (`python` False) or computes in Python.

    Python runs one thread at a time, and a computing thread gives up the interpreter only every 5 ms. A hand-written
    thread and queue also reach 0.75; with `sys.setswitchinterval(0.0005)` 0.90. Such work needs processes, as in Grain.
    """

    def work(x: np.ndarray) -> np.ndarray:
        if python:
            end = time.perf_counter() + PIPELINE_SECONDS
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(PIPELINE_SECONDS)
        return x

    dataset = Dataset.range(steps + 40).batch(1).repeat(4).batch(4).map(lambda x: work(x.reshape(4)))
    with iter(strategy.experimental_distribute_dataset(dataset)) as reading:
        for _ in range(16):  # until the worker is ahead
            next(reading)
            time.sleep(STEP_SECONDS)
        in_steps, start = 0.0, time.perf_counter()
        for _ in range(steps):
            jax.block_until_ready(next(reading))
            before = time.perf_counter()
            time.sleep(STEP_SECONDS)
            in_steps += time.perf_counter() - before
        return Overlap(in_steps, time.perf_counter() - start)


def report(results: list[tuple[Contest, Paired]], overlaps: dict[str, Overlap]) -> dict[str, Any]:
    """Prints a table and returns the figures."""
    table = Table("pipeline", "batches/s", "hand-written", "ratio", "95 %", "target", "x TensorFlow")
    figures: dict[str, Any] = {}
    for contest, paired in results:
        ours, hand = (1 / float(np.median(times)) for times in (paired.ours_seconds, paired.theirs_seconds))
        low, high = (1 / bound for bound in reversed(paired.interval))
        ratio = 1 / paired.ratio
        figures[contest.name] = {"batches_per_second": ours, "by_hand": hand, "ratio": ratio, "interval": [low, high]}
        table.add_row(
            contest.name,
            f"{ours:,.0f}",
            f"{hand:,.0f}",
            f"{ratio:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{contest.target:.2f}",
            f"{ours / contest.tensorflow:.1f}",
        )
    for name, found in overlaps.items():
        figures[f"overlap, {name}"] = found.share
        table.add_row(f"step 10 ms, input 8 ms ({name})", "", "", f"{found.share:.3f}", "", "0.95", "")
    Console().print(table)
    return figures


def main() -> None:
    """Runs all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(DEVICES)])
    results = [
        (contest, pair(contest.ours, contest.by_hand, rounds=arguments.rounds, calls=100, warm_up=32))
        for contest in contests(strategy)
    ]
    overlaps = {name: overlap(strategy, 200, python) for name, python in (("waiting", False), ("Python", True))}
    figures = report(results, overlaps)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
