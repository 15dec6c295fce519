"""What every update path trains, and plain NumPy training of it.

One model tells everything: `v` goes through a nonlinear loss, so that rounding shows; `c` holds one weight per
example, whose gradient is the same in every step that uses the example, so `c` counts how often each one was used.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

BATCH = 24  # divides by 1, 2, 3, 4, 6 and 8
EXAMPLES = 3 * BATCH + 10  # the last batch is uneven
STEPS = math.ceil(EXAMPLES / BATCH)
RATE, MOMENTUM = 0.5, 0.5


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    """Inputs f32[n, n + 3]: which example it is, then three features. Labels f32[n, 1]."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(EXAMPLES, 3)).astype(np.float32)
    x = np.concatenate([np.eye(EXAMPLES, dtype=np.float32), features], 1)
    return x, np.tanh(features.sum(1, keepdims=True)).astype(np.float32)


def initial() -> dict[str, np.ndarray]:
    """The initial weights."""
    v = np.random.default_rng(1).normal(size=(3, 1)).astype(np.float32)
    return {"v": v, "c": np.zeros((EXAMPLES, 1), np.float32)}


def predictions(p: Any, x: Any) -> Any:
    """Two columns: a nonlinear output, and the example's own weight."""
    return jnp.concatenate([jnp.tanh(x[:, EXAMPLES:] @ p["v"]), x[:, :EXAMPLES] @ p["c"]], 1)


def losses(predicted: Any, y: Any) -> Any:
    """One loss per example."""
    return (predicted[:, 0] - y[:, 0]) ** 2 - predicted[:, 1]


@dataclasses.dataclass(frozen=True)
class Trained:
    """The weights after a step, and its loss."""

    loss: float
    weights: dict[str, np.ndarray]


@functools.cache
def reference(order: tuple[int, ...], momentum: float) -> list[Trained]:
    """Gradient descent in NumPy, in float64, on one device: what each step gives.

    Args:
        order: The number of each step's batch.
        momentum: Of the optimizer.
    """
    x, y = (part.astype(np.float64) for part in data())
    p = {name: value.astype(np.float64) for name, value in initial().items()}
    slots = {name: np.zeros_like(value) for name, value in p.items()}
    trained = []
    for batch in order:
        at = batch * BATCH
        rows, features, labels = x[at : at + BATCH, :EXAMPLES], x[at : at + BATCH, EXAMPLES:], y[at : at + BATCH]
        out = np.tanh(features @ p["v"])
        loss = float(np.mean((out - labels) ** 2 - rows @ p["c"]))
        gradients = {
            "v": features.T @ (2 * (out - labels) * (1 - out**2)) / len(rows),
            "c": -rows.T @ np.ones_like(labels) / len(rows),
        }
        for name in p:
            slots[name] = momentum * slots[name] + gradients[name]
            p[name] = p[name] - RATE * slots[name]
        trained.append(Trained(loss, dict(p)))
    return trained
