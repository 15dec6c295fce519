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


def main(devices: int, replicas: int, seconds: float, folder: str) -> None:
    mr.config.set_virtual_devices(devices)
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        weights = [mr.Variable(jnp.zeros(64), name=f"w{number}") for number in range(COUNT)]
        optimizer = mr.optimizers.SGD(1.0, momentum=0.0)
        total = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", name="total")
    checkpoint = Checkpoint(optimizer=optimizer, total=total, **{weight.name: weight for weight in weights})
    manager = CheckpointManager(checkpoint, folder, max_to_keep=2)

    def replica(x: jax.Array) -> None:
        with mr.GradientTape() as tape:
            loss = -sum((weight * x).sum() for weight in weights) / replicas
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        total.assign_add(1.0 / replicas)

    train = mr.function(lambda x: strategy.run(replica, args=(x,)))
    evaluate = mr.function(lambda: jnp.stack([weight.read_value() for weight in weights] + [total + jnp.zeros(64)]))
    counts = dict.fromkeys(("train", "read", "checkpoint", "evaluate"), 0)
    errors: list[str] = []
    end = time.monotonic() + seconds
    newest = [0.0] * COUNT

    def one_value(values: object, whose: str) -> float:
        found = np.unique(np.asarray(values))
        assert len(found) == 1, f"{whose}: parts of several steps, {found}"
        return float(found[0])

    def train_once() -> None:
        train(jnp.ones(64))

    def read_once() -> None:
        for number, weight in enumerate(weights):
            now = one_value(weight.numpy(), f"reading {weight.name}")
            assert now >= newest[number], "a weight went back"
            newest[number] = now

    def save_once() -> None:
        path = manager.save(counts["checkpoint"] + 1)
        manager.wait()
        with mr.OneDeviceStrategy("CPU:0").scope():
            copies = {weight.name: mr.Variable(jnp.zeros(64)) for weight in weights}
            counted = mr.Variable(0.0)
        Checkpoint(total=counted, **copies).restore(path).expect_partial()
        values = [copy.numpy() for copy in copies.values()]
        one_value([*values, np.full(64, float(counted))], "a checkpoint")

    def evaluate_once() -> None:
        one_value(evaluate(), "evaluating")

    def loop(name: str, once: Callable[[], None]) -> None:
        try:
            while time.monotonic() < end and not errors:
                once()
                counts[name] += 1
        except BaseException:
            errors.append(traceback.format_exc())

    train_once()
    bodies = {"train": train_once, "read": read_once, "checkpoint": save_once, "evaluate": evaluate_once}
    threads = [threading.Thread(target=loop, args=item, daemon=True) for item in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert one_value(evaluate(), "the end") == counts["train"] + 1
    print("consistent:", *(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
