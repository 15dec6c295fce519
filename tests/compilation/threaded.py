"""Trains, reads, checkpoints and evaluates in four threads. Prints how often each of them did.

python threaded.py DEVICES REPLICAS SECONDS FOLDER
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

COUNT = 6
ZEROS = np.zeros(64, np.float32)


class Job:
    """What the four threads do to one model: every step adds 1 to all of it."""

    def __init__(self, devices: int, replicas: int, folder: str) -> None:
        strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
        with strategy.scope():
            self.weights = [mr.Variable(jnp.zeros(64), name=f"w{number}") for number in range(COUNT)]
            self.optimizer = mr.optimizers.SGD(1.0)
            self.total = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", name="total")
        parts = {weight.name: weight for weight in self.weights}
        checkpoint = Checkpoint(optimizer=self.optimizer, total=self.total, **parts)
        self.manager = CheckpointManager(checkpoint, folder, max_to_keep=2)
        self.share = 1.0 / replicas
        self.newest = [0.0] * COUNT
        self.saves = 0
        self._train = mr.function(lambda x: strategy.run(self._replica, args=(x,)))
        self._evaluate = mr.function(lambda: jnp.stack([w.read_value() for w in self.weights] + [self.total + ZEROS]))

    def _replica(self, x: jax.Array) -> None:
        with mr.GradientTape() as tape:
            loss = -sum((weight * x).sum() for weight in self.weights) * self.share
        gradients = tape.gradient(loss, self.weights)
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        self.total.assign_add(self.share)

    def train(self) -> None:
        self._train(jnp.ones(64))

    def read(self) -> None:
        for number, weight in enumerate(self.weights):
            now = one_value(weight.numpy(), f"reading {weight.name}")
            assert now >= self.newest[number], "a weight went back"
            self.newest[number] = now

    def checkpoint(self) -> None:
        self.saves += 1
        path = self.manager.save(self.saves)
        self.manager.wait()
        with mr.OneDeviceStrategy("CPU:0").scope():
            copies = {weight.name: mr.Variable(jnp.zeros(64)) for weight in self.weights}
            counted = mr.Variable(0.0)
        Checkpoint(total=counted, **copies).restore(path).expect_partial()
        one_value([*(copy.numpy() for copy in copies.values()), np.full(64, float(counted))], "a checkpoint")

    def evaluate(self) -> float:
        return one_value(self._evaluate(), "evaluating")


def one_value(values: object, whose: str) -> float:
    found = np.unique(np.asarray(values))
    assert len(found) == 1, f"{whose}: parts of several steps, {found}"
    return float(found[0])


def repeat(once: Callable[[], object], name: str, end: float, counts: dict[str, int], errors: list[str]) -> None:
    try:
        while time.monotonic() < end and not errors:
            once()
            counts[name] += 1
    except BaseException:
        errors.append(traceback.format_exc())


def main(devices: int, replicas: int, seconds: float, folder: str) -> None:
    mr.config.set_virtual_devices(devices)
    job = Job(devices, replicas, folder)
    job.train()
    counts, errors, end = dict.fromkeys(("train", "read", "checkpoint", "evaluate"), 0), [], time.monotonic() + seconds
    threads = [
        threading.Thread(target=repeat, args=(getattr(job, name), name, end, counts, errors), daemon=True)
        for name in counts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert job.evaluate() == counts["train"] + 1
    print("consistent:", *(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
