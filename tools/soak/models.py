"""The models: pure functions of a mapping from names to arrays (or variables). Their source is part of each script."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

SHAPES: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "linear": {"w": (3, 1), "b": (1,)},
    "mlp": {"w1": (3, 4), "b1": (4,), "w2": (4, 1), "b2": (1,)},
    "embedding": {"table": (5, 3), "w": (3, 1)},
    "two": {"w": (3, 1), "v": (3, 1)},
    "custom_vjp": {"w": (3, 1), "b": (1,)},
    "custom_jvp": {"w": (3, 1), "b": (1,)},
    "scan": {"w": (3, 3), "head": (3, 1)},
}


def linear(p: Any, x: Any) -> Any:
    """Applies a linear layer."""
    return x @ p["w"] + p["b"]


def mlp(p: Any, x: Any) -> Any:
    """Applies two layers."""
    return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def embedding(p: Any, x: Any) -> Any:
    """Applies an embedding lookup and a linear layer."""
    row = jnp.abs(x[:, 0] * 3).astype(jnp.int32) % 5
    return (jnp.asarray(p["table"])[row] + x) @ p["w"]


def two(p: Any, x: Any) -> Any:
    """Even-numbered replicas use `w`, the others `v`: the gradient of the other one is None."""
    return x @ p["v" if p["replica"] % 2 else "w"]


def custom_vjp(p: Any, x: Any) -> Any:
    """Applies a layer with a custom VJP rule for its argument, which closes over the weights."""
    w = jnp.asarray(p["w"])

    @jax.custom_vjp
    def layer(x: Any) -> Any:
        return jnp.tanh(x @ w)

    def forward(x: Any) -> Any:
        out = layer(x)
        return out, out

    def backward(out: Any, cotangent: Any) -> Any:
        return ((cotangent * (1 - out**2)) @ w.T,)

    layer.defvjp(forward, backward)
    return layer(x + p["b"])


def custom_jvp(p: Any, x: Any) -> Any:
    """Applies the same layer with a custom JVP rule."""
    w = jnp.asarray(p["w"])

    @jax.custom_jvp
    def layer(x: Any) -> Any:
        return jnp.tanh(x @ w)

    @layer.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        out = jnp.tanh(primals[0] @ w)
        return out, (1 - out**2) * (tangents[0] @ w)

    return layer(x + p["b"])


def scan(p: Any, x: Any) -> Any:
    """Applies a loop whose body reads the weights."""
    state, _ = jax.lax.scan(lambda state, _: (jnp.tanh(state @ p["w"]), None), x, None, length=3)
    return state @ p["head"]


def data(seed: int, examples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns inputs f32[n, 3], labels f32[n, 1], weights f32[n] (some are 0) and example ids i32[n]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 3)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.1).astype(np.float32)
    weights = np.where(rng.random(examples) < 0.25, 0, rng.random(examples) + 0.5).astype(np.float32)
    return x, y, weights, np.arange(examples, dtype=np.int32)


def start(seed: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns the initial weights."""
    rng = np.random.default_rng(seed + 1)
    return {name: (rng.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}


MODELS: Final = {one.__name__: one for one in (linear, mlp, embedding, two, custom_vjp, custom_jvp, scan)}
