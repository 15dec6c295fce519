"""A Keras step with mirrored next to `keras.distribution.DataParallel` on JAX: the same model, data and devices.

Both read the batches as NumPy arrays, and alternate in one process; the ratio is the median over rounds.

| ours | theirs |
|---|---|
| a custom loop (scope, run, tape, `apply_gradients`), waits for each step's loss | `train_on_batch`, also waits |
| `fit` of a model created in scope | `fit` |

On simulated devices an epoch has few steps: Keras does not bound the steps in flight, and dozens of them can deadlock.

    JAX_PLATFORMS=cpu python benchmarks/keras_step.py --devices 2
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from pairing import Paired, pair
from rich.console import Console
from rich.table import Table

import mirrored as mr

TARGET = 1.0


def mlp(layers: Any, inputs: Any) -> Any:
    """784-512-512-10."""
    hidden = layers.Dense(512, "relu")(layers.Dense(512, "relu")(layers.Flatten()(inputs)))
    return layers.Dense(10)(hidden)


def convolutional(layers: Any, inputs: Any) -> Any:
    """Builds two convolutions and a dense layer."""
    hidden = layers.Conv2D(16, 3, 2, activation="relu")(layers.Conv2D(8, 3, 2, activation="relu")(inputs))
    return layers.Dense(10)(layers.Flatten()(hidden))


def attention(layers: Any, inputs: Any) -> Any:
    """Builds one transformer block over the rows."""
    rows = layers.Dense(64)(layers.Reshape((28, 28))(inputs))
    mixed = layers.LayerNormalization()(rows + layers.MultiHeadAttention(4, 16)(rows, rows))
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(mixed + layers.Dense(64, "gelu")(mixed)))


MODELS = {"MLP": (mlp, 256), "convolutional": (convolutional, 64), "attention": (attention, 32)}


def make(body: Callable[[Any, Any], Any]) -> Any:
    """Builds the model, with the same weights for all, compiled with Adam."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((28, 28, 1))
    model = keras.Model(inputs, body(keras.layers, inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and labels."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 28, 28, 1)).astype(np.float32), rng.integers(0, 10, count).astype(np.int32)


def data_parallel(body: Any, devices: list[Any], batch: int, steps: int, way: str) -> Callable[[], None]:
    """Returns an epoch with Keras' own data parallelism."""
    distribution = keras.distribution.DataParallel(devices=[f"{one.platform}:{one.id}" for one in devices])
    x, y = examples(batch * steps)
    with distribution.scope():
        model = make(body)

    def fit() -> None:
        with distribution.scope():
            model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)

    def loop() -> None:
        with distribution.scope():
            for start in range(0, len(x), batch):
                model.train_on_batch(x[start : start + batch], y[start : start + batch])

    return fit if way == "fit" else loop


def by_fit(body: Any, devices: list[Any], batch: int, steps: int) -> Callable[[], None]:
    """Returns an epoch of `fit` of a model created in scope."""
    x, y = examples(batch * steps)
    with mr.MirroredStrategy(devices).scope():
        model = make(body)
    return lambda: model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)


def by_loop(body: Any, devices: list[Any], batch: int, steps: int) -> Callable[[], None]:
    """Returns an epoch of a custom loop."""
    strategy = mr.MirroredStrategy(devices)
    with strategy.scope():
        model = make(body)
        model.optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    data = strategy.distribute_dataset(mr.data.Dataset.from_tensor_slices(examples(batch * steps)).batch(batch))

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(loss_fn(y, model(x, training=True)))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @mr.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    def epoch() -> None:
        for x, y in data:
            float(step(x, y))

    return epoch


def measure(name: str, way: str, devices: list[Any], rounds: int, steps: int) -> dict[str, Any]:
    """Times one of our loops next to Keras'."""
    body, batch = MODELS[name]
    ours = {"custom loop": by_loop, "fit": by_fit}[way](body, devices, batch, steps)
    theirs = data_parallel(body, devices, batch, steps, way)
    paired: Paired = pair(ours, theirs, rounds=rounds, calls=1, warm_up=2)
    low, high = paired.interval
    return {
        "model": name,
        "way": way,
        "devices": len(devices),
        "ours_ms": 1e3 * sorted(paired.ours_seconds)[rounds // 2] / steps,
        "theirs_ms": 1e3 * sorted(paired.theirs_seconds)[rounds // 2] / steps,
        "ratio": paired.ratio,
        "low": low,
        "high": high,
        "met": paired.ratio <= TARGET,
    }


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8, help="steps per epoch")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.devices)
    devices = mr.MirroredStrategy().device_assignment.devices[: options.devices]
    table = Table("model", "way", "devices", "ours ms/step", "DataParallel ms/step", "ratio", "95 %", "at most 1")
    results = []
    for name in options.models:
        for way in ("custom loop", "fit"):
            r = measure(name, way, list(devices), options.rounds, options.steps)
            results.append(r)
            times = [f"{r['ours_ms']:.3f}", f"{r['theirs_ms']:.3f}", f"{r['ratio']:.3f}"]
            met = "yes" if r["met"] else "no"
            table.add_row(name, way, str(r["devices"]), *times, f"{r['low']:.3f} to {r['high']:.3f}", met)
    Console(width=110).print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
