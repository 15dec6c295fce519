"""Trains a small model for 50 steps and prints a hash of its final weights: run as a program, one process per device
count.

python training.py MODEL DTYPE REPLICAS DEVICES
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import mirrored as mr

STEPS = 50
Params = dict[str, Any]


def mlp(p: Params, x: Any, key: Any) -> Any:
    """Two layers, dropout."""
    h = jax.nn.relu(x.reshape(x.shape[0], -1) @ p["w0"] + p["b0"])
    return dropout(h, key) @ p["w1"] + p["b1"]


def dropout(x: Any, key: Any) -> Any:
    """A mask that depends on the step and the logical replica."""
    return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0).astype(x.dtype)


def convnet(p: Params, x: Any, key: Any) -> Any:
    """A strided convolution and a linear layer."""
    x = x.reshape(x.shape[0], 8, 8, 1)
    x = lax.conv_general_dilated(x, p["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(x + p["kb"]).reshape(x.shape[0], -1) @ p["w1"] + p["b1"]


def transformer(p: Params, x: Any, key: Any) -> Any:
    """One attention block with dropout and layer normalisation."""
    z = x.reshape(x.shape[0], 8, 8) @ p["e"]
    q, k, v = jnp.split(normalised(z) @ p["qkv"], 3, -1)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 4.0)
    z = z + dropout(weights @ v, key)
    return normalised(z).mean(1) @ p["w1"] + p["b1"]


def multiplied(p: Params, x: Any, key: Any) -> Any:
    """A gradient whose last operation is a multiply."""
    return (x.reshape(x.shape[0], -1)[:, :10] * p["s"]) * p["t"] + p["none"].sum()


def divided(p: Params, x: Any, key: Any) -> Any:
    """Divisions by one scalar, whose broadcast a compiler would compute once for all replicas of a device."""
    z = x.reshape(x.shape[0], -1)[:, :16] / p["temperature"]
    return jnp.tanh(z @ p["w"]) / p["temperature"]


def normalised(z: Any) -> Any:
    """Layer normalisation without parameters."""
    return (z - z.mean(-1, keepdims=True)) * lax.rsqrt(z.var(-1, keepdims=True) + 1e-5)


def shapes_of(model: str) -> dict[str, tuple[int, ...]]:
    """Parameters of each model; one has no elements."""
    return {
        "mlp": {"w0": (64, 32), "b0": (32,), "w1": (32, 10), "b1": (10,)},
        "convnet": {"k": (3, 3, 1, 8), "kb": (8,), "w1": (128, 10), "b1": (10,)},
        "transformer": {"e": (8, 16), "qkv": (16, 48), "w1": (16, 10), "b1": (10,)},
        "multiplied": {"s": (10,), "t": (10,), "none": (0,)},
        "divided": {"w": (16, 10), "temperature": ()},
    }[model]


MODELS: dict[str, Callable[[Params, Any, Any], Any]] = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "multiplied": multiplied,
    "divided": divided,
}


def train(model: str, dtype: str, replicas: int, devices: int) -> str:
    """The hash of the final weights, and of nothing else: the step returns nothing."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=True)
    rng = np.random.default_rng(0)
    with strategy.scope():
        params = {
            name: mr.Variable(jnp.asarray(rng.normal(size=shape) / 4, dtype), name=name)
            for name, shape in shapes_of(model).items()
        }
        optimizer = mr.optimizers.Adam(1e-2)
        step_count = mr.Variable(0, trainable=False)
    x = rng.normal(size=(24, 64)).astype("float32")
    y = rng.integers(0, 10, 24).astype("int32")
    batches = strategy.distribute_dataset([(x, y)] * STEPS)

    def replica_step(x: Any, y: Any) -> None:
        replica = mr.get_replica_context().replica_id_in_sync_group
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), step_count.value()), replica)
        with mr.GradientTape() as tape:
            values = {name: variable.value() for name, variable in params.items()}
            logits = MODELS[model](values, x.astype(dtype), key)
            logp = jax.nn.log_softmax(logits.astype(jnp.float32))
            loss = mr.losses.average_loss(-jnp.take_along_axis(logp, y[:, None], -1)[:, 0])
        variables = list(params.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        step_count.assign_add(1)

    @mr.function
    def step(x: Any, y: Any) -> None:
        strategy.run(replica_step, args=(x, y))

    for bx, by in batches:
        step(bx, by)
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(np.asarray(params[name].numpy(), np.float32).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    name, kind, num_replicas, num_devices = sys.argv[1:]
    print(train(name, kind, int(num_replicas), int(num_devices)))
