"""Time of a training step with R replicas on D devices that do not divide R, relative to devices that do.

    python benchmarks/uneven.py [--rounds 25] [--width 1024] [--pairs 1] [--json FILE]

The model is compute-bound: five dense layers of `width` units, `width` / 4 examples per replica. A round times one step
of both layouts in turn, so that the load of the machine is the same for both. The figure is the median of the rounds'
ratios, with its 95 % interval. The simulated devices share the machine's cores, so a step takes as long
as all slots together: the limit is ceil(R / D) / (R / D) * 1.05, and on separate devices the ratio of K is the same.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import jax
import jax.numpy as jnp
import numpy as np
from pairing import pair

import mirrored as mr

PAIRS = (((8, 3), (8, 4)), ((6, 4), (6, 3)), ((5, 2), (5, 5)))
LAYERS = 5


def step_on(replicas: int, devices: int, width: int, *, deterministic: bool) -> Callable[[], None]:
    """Returns a function that executes one training step, and waits for it."""
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    rng = np.random.default_rng(0)
    with strategy.scope():
        layers = [mr.Variable(rng.normal(size=(width, width)).astype(np.float32) / 32) for _ in range(LAYERS)]

    def replica(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = x
            for layer in layers:
                y = jnp.tanh(y @ layer)
            loss = jnp.mean(y**2) / replicas
        gradients = mr.get_replica_context().all_reduce("sum", tape.gradient(loss, layers))
        for layer, gradient in zip(layers, gradients, strict=True):
            layer.assign_sub(0.1 * gradient, read_value=False)
        return loss

    step = mr.function(lambda x: strategy.reduce("sum", strategy.run(replica, args=(x,)), axis=None))
    rows = rng.normal(size=(replicas * width // 4, width)).astype(np.float32)
    [batch] = strategy.experimental_distribute_dataset(mr.data.Dataset.from_tensor_slices(rows).batch(len(rows)))

    def timed() -> None:
        jax.block_until_ready(step(batch))

    return timed


def main() -> None:
    """Prints one line per pair of layouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=len(PAIRS), help="how many of the pairs of layouts")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    mr.config.set_virtual_devices(8)
    results = []
    for uneven, even in PAIRS[: options.pairs]:
        for deterministic in (False, True):
            steps = [step_on(*layout, options.width, deterministic=deterministic) for layout in (uneven, even)]
            paired = pair(*steps, rounds=options.rounds, calls=1)
            replicas, devices = uneven
            limit = math.ceil(replicas / devices) * devices / replicas * 1.05
            name = f"{replicas} on {devices} / {even[0]} on {even[1]}{', deterministic' if deterministic else ''}"
            low, high = paired.interval
            seconds = statistics.median(paired.theirs_seconds)
            line = {"name": name, "ratio": paired.ratio, "low": low, "high": high, "limit": limit, "even": seconds}
            results.append(line)
            print(
                f"{name}: {paired.ratio:.3f} [{low:.3f}, {high:.3f}], limit {limit:.3f}, even {seconds:.3f} s",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
