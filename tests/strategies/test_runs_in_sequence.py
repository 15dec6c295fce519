"""A differentiated run accepts arrays that come from the gradient or the result of an earlier run in the same function.

Their types named the mesh of the earlier run, and JAX refused to combine them with arrays of the next run's body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
RATE = 0.1

BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda w, x: jnp.sum(jax.nn.relu(x @ w) ** 2, 1),
    "jit": lambda w, x: jax.jit(lambda x: jnp.sum((x[:, :, None] * w) ** 2, (1, 2)))(x),
    "vmap": lambda w, x: jax.vmap(lambda z: jnp.sum(jnp.tanh(z @ w + w[0])))(x),
    "scan": lambda w, x: jax.lax.scan(lambda carry, z: (jnp.tanh(carry + z @ w), carry[0]), w[0], x)[1],
    "cond": lambda w, x: jax.lax.cond(x.sum() > -1e9, lambda w: jnp.sum(w**2), lambda w: w[0, 0], w) * x[:, 0],
    "gradient": lambda w, x: jnp.sum(jax.grad(lambda x: jnp.sum(jnp.sin(x @ w)))(x) ** 2, 1),
}
LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (3, 2)]


def descend(loss: Callable[[Any, Any], Any], gradient: Callable[..., Any]) -> dict[str, Callable[[Any, Any], Any]]:
    """Functions that differentiate a loss at an array which depends on an earlier gradient or value of the loss."""

    def two(w: Any, x: Any) -> Any:
        for _ in range(2):
            w = w - RATE * gradient(loss)(w, x)
        return w

    def sharpness_aware(w: Any, x: Any) -> Any:
        ascent = gradient(loss)(w, x)
        shift = 0.05 * ascent / jnp.linalg.norm(ascent)
        return w - RATE * gradient(lambda w, x: loss(w + shift, x))(w, x)

    def scaled_by_the_loss(w: Any, x: Any) -> Any:
        return w - RATE * gradient(loss)(w * (1.0 + 0.1 * loss(w, x)), x)

    def in_a_loop(w: Any, x: Any) -> Any:
        first = w - RATE * gradient(loss)(w, x)
        return jax.lax.scan(lambda w, _: (w - RATE * gradient(loss)(w, x), None), first, length=2)[0]

    return {
        "two steps": two,
        "sharpness-aware": sharpness_aware,
        "scaled by the loss": scaled_by_the_loss,
        "scan": in_a_loop,
    }


def of_tape(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`jax.grad` by a tape."""

    def gradient(w: Any, x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(w)
            value = function(w, x)
        return tape.gradient(value, w)

    return gradient


@pytest.mark.first(3)
@pytest.mark.sampled(24)
@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize(("replicas", "devices"), LAYOUTS)
@pytest.mark.parametrize("gradient", [of_tape, jax.grad], ids=["tape", "grad"])
@pytest.mark.parametrize("program", list(descend(lambda w, x: w, jax.grad)))
@pytest.mark.parametrize("body", list(BODIES))
def test_arrays_of_an_earlier_gradient_are_those_of_any_program(
    body: str, program: str, gradient: Callable[..., Any], replicas: int, devices: int, deterministic: bool
) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    [batch] = strategy.experimental_distribute_dataset([X])
    of_examples = BODIES[body]

    def whole(w: Any, x: Any) -> Any:
        # `scan` and `cond` depend on the replica's part, so that the reference is computed part by part.
        return sum(jnp.sum(of_examples(w, part)) for part in jnp.split(x, replicas)) / len(X)

    def loss(w: Any, x: Any) -> Any:
        replica = lambda w, x: mr.losses.average_loss(of_examples(w, x))  # noqa: E731
        return strategy.reduce("SUM", strategy.run(replica, args=(w, x)), axis=None)

    found = mr.function(descend(loss, gradient)[program])(jnp.asarray(W), batch)
    expected = jax.jit(descend(whole, jax.grad)[program])(W, X)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
