"""The reference implementation: the same training on one device, in plain JAX and optax, without mirrored.

A custom derivative rule that closes over weights is replaced by its function: plain JAX does not differentiate such a
closure, so a framework that accepts it must give the mathematical gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from soak import models
from soak.program import Program

RATE: Final = 0.05


def transform_of(name: str, clip: str = "none") -> optax.GradientTransformation:
    """Returns the optimizer of a program."""
    rule = {
        "sgd": lambda: optax.sgd(RATE),
        "momentum": lambda: optax.sgd(RATE, 0.9),
        "adam": lambda: optax.adam(RATE, eps=1e-3),
        "schedule": lambda: optax.sgd(lambda count: RATE / (1.0 + count)),
    }[name]()
    bound = {
        "none": optax.identity,
        "clipvalue": lambda: optax.clip(0.2),
        "global_clipnorm": lambda: optax.clip_by_global_norm(0.5),
        "clipnorm": lambda: optax.stateless(lambda updates, _: jax.tree.map(_bounded, updates)),
    }[clip]()
    return optax.chain(bound, rule)


def _bounded(update: Any) -> Any:
    norm = jnp.sqrt(jnp.sum(update**2))
    return jnp.where(norm > 0.5, update * (0.5 / norm), update)


def orders_of(program: Program) -> list[list[int]]:
    """Returns the examples of each step, for sources with a fixed order."""
    edges = np.cumsum([0, *program.batch_sizes])
    epoch = [list(range(a, b)) for a, b in zip(edges, edges[1:], strict=False)]
    return epoch * program.epochs


def train(program: Program, orders: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Returns losses and final weights of the program on one device."""
    x, y, weights, _ = models.data(program.seed, program.examples)
    parameters: Any = models.start(program.seed, models.SHAPES[program.model])
    transform = transform_of(program.optimizer, program.clip)
    state = transform.init(parameters)
    losses = []
    for order in orders:
        rows = np.asarray(order, int)
        loss, parameters, state = _step(
            program.model,
            program.optimizer,
            program.clip,
            parameters,
            state,
            x[rows],
            y[rows],
            _weights_of(program, weights, rows),
            _replica_of(program, len(rows)),
        )
        losses.append(float(loss))
    return {"losses": losses, "weights": {name: np.asarray(value) for name, value in parameters.items()}}


def _weights_of(program: Program, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if program.weighting == "none":
        return np.ones(len(rows), np.float32)
    if program.weighting == "weights":
        return weights[rows]
    return (rows % 3 != 0).astype(np.float32)


def _replica_of(program: Program, count: int) -> np.ndarray:
    """Returns each row's replica: per-replica batches of ceil(m / n), the last ones smaller or empty unless padded."""
    whole = program.batch if program.last_batch == "pad" else count
    return np.arange(count) // -(-whole // program.replicas)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _step(
    model: str, optimizer: str, clip: str, parameters: Any, state: Any, x: Any, y: Any, weights: Any, replica: Any
) -> Any:
    def mean(parameters: Any) -> Any:
        losses = (_predicted(model, parameters, x, replica) - y)[:, 0] ** 2
        total = jnp.sum(weights)
        return jnp.where(total == 0, 0.0, jnp.sum(losses * weights) / jnp.where(total == 0, 1.0, total))

    loss, gradients = jax.value_and_grad(mean)(parameters)
    updates, state = transform_of(optimizer, clip).update(gradients, state, parameters)
    return loss, optax.apply_updates(parameters, updates), state


def _predicted(model: str, p: Any, x: Any, replica: Any) -> Any:
    if model == "two":
        return jnp.where((replica % 2 == 0)[:, None], x @ p["w"], x @ p["v"])
    if model in ("custom_vjp", "custom_jvp"):
        return jnp.tanh((x + p["b"]) @ p["w"])
    return models.MODELS[model](p, x)
