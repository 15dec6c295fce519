"""Small models as pure functions of a mapping from names to arrays (or variables), with data to train them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Parameters = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """A model to train.

    Attributes:
        shapes: The parameters by name; a matrix is scaled to its number of rows.
        losses: From parameters, inputs ``[n, ...]`` and labels ``i32[n]`` to one loss per example, ``f32[n]``.
        inputs: The shape of one example.
        classes: How many labels there are.
    """

    shapes: Mapping[str, tuple[int, ...]]
    losses: Callable[[Parameters, Any, Any], Any]
    inputs: tuple[int, ...]
    classes: int = 4

    def start(self) -> dict[str, np.ndarray]:
        """The initial parameters."""
        generator = np.random.default_rng(7)
        return {
            name: (generator.normal(size=shape) / np.sqrt(np.prod(shape[:-1], initial=1.0))).astype(np.float32)
            for name, shape in self.shapes.items()
        }

    def batches(self, sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """One batch of inputs and labels per size."""
        generator = np.random.default_rng(11)
        return [
            (
                generator.normal(size=(size, *self.inputs)).astype(np.float32),
                generator.integers(0, self.classes, size=size).astype(np.int32),
            )
            for size in sizes
        ]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -picked[:, 0]


def _mlp(p: Parameters, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ p["w1"] + p["b1"])
    return _cross_entropy(hidden @ p["w2"] + p["b2"], y)


def _convnet(p: Parameters, x: Any, y: Any) -> Any:
    dimensions = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(x, jnp.asarray(p["k1"]), (1, 1), "SAME", dimension_numbers=dimensions)
    hidden = jax.nn.relu(hidden + p["b1"])
    hidden = jax.lax.conv_general_dilated(hidden, jnp.asarray(p["k2"]), (2, 2), "VALID", dimension_numbers=dimensions)
    return _cross_entropy(jnp.mean(jax.nn.relu(hidden), axis=(1, 2)) @ p["w"] + p["b"], y)


def _normalized(x: Any, scale: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True) + 1e-5) * scale


def _transformer(p: Parameters, x: Any, y: Any) -> Any:
    hidden = x @ p["embed"] + p["position"]
    normal = _normalized(hidden, p["scale1"])
    query, key, value = jnp.split(normal @ p["qkv"], 3, axis=-1)
    heads = [part.reshape(*part.shape[:2], 2, part.shape[-1] // 2) for part in (query, key, value)]
    scores = jnp.einsum("nqhd,nkhd->nhqk", heads[0], heads[1]) / 2.0
    attended = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), heads[2])
    hidden = hidden + attended.reshape(hidden.shape) @ p["out"]
    hidden = hidden + jax.nn.gelu(_normalized(hidden, p["scale2"]) @ p["up"]) @ p["down"]
    return _cross_entropy(jnp.mean(hidden, axis=1) @ p["head"], y)


def _lstm(p: Parameters, x: Any, y: Any) -> Any:
    """The carry starts at constants, and the body of the scan reads the parameters."""

    def step(carry: Any, frame: Any) -> Any:
        hidden, cell = carry
        gates = frame @ p["input"] + hidden @ p["recurrent"] + p["bias"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((x.shape[0], 6))
    (hidden, _), _ = jax.lax.scan(step, (zeros, zeros), jnp.swapaxes(x, 0, 1))
    return _cross_entropy(hidden @ p["head"], y)


PROGRAMS = {
    "mlp": Program({"w1": (5, 8), "b1": (8,), "w2": (8, 4), "b2": (4,)}, _mlp, (5,)),
    "convnet": Program(
        {"k1": (3, 3, 2, 4), "b1": (4,), "k2": (2, 2, 4, 4), "w": (4, 4), "b": (4,)}, _convnet, (6, 6, 2)
    ),
    "transformer": Program(
        {
            **{"embed": (3, 8), "position": (4, 8), "scale1": (8,), "qkv": (8, 24), "out": (8, 8)},
            **{"scale2": (8,), "up": (8, 16), "down": (16, 8), "head": (8, 4)},
        },
        _transformer,
        (4, 3),
    ),
    "lstm": Program({"input": (3, 24), "recurrent": (6, 24), "bias": (24,), "head": (6, 4)}, _lstm, (5, 3)),
}
