"""Every way of updating variables, on every layout of replicas over devices: accepted, and equal to one device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr

BATCH, STEPS, RATE = 12, 3, 0.1
LAYOUTS = ((1, 1), (1, 2), (4, 4), (2, 4), (1, 3), (2, 6))
Step = Callable[[Any, Any], Any]


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(BATCH, 3)).astype("float32")
    return x, (x.sum(1, keepdims=True) + 1).astype("float32")


def start() -> dict[str, jax.Array]:
    return {"b": jnp.zeros((1,)), "w": jnp.full((3, 1), 0.5)}


def loss_of(params: Any, x: Any, y: Any) -> Any:
    """The sum of squares over the batch at hand, divided by the size of the global batch."""
    return jnp.sum((x @ params["w"] + params["b"] - y) ** 2) / BATCH


def mean_of(params: Any, x: Any, y: Any) -> Any:
    """The mean over the batch at hand."""
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


@functools.cache
def expected() -> dict[str, np.ndarray]:
    """One device, plain JAX."""
    x, y = data()
    params = start()
    for _ in range(STEPS):
        gradients = jax.grad(loss_of)(params, x, y)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
    return jax.tree.map(np.asarray, params)


# Each path makes its state in the strategy's scope, and returns a replica function and what reads the parameters.


def assigned_all_reduce() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())

    def step(x: Any, y: Any) -> None:
        gradients = jax.grad(mean_of)(mr.unmirror(params), x, y)
        for name, variable in params.items():
            gradient = mr.get_replica_context().all_reduce("MEAN", gradients[name])
            variable.assign(variable.read_value() - RATE * gradient)

    return step, lambda: params


def assigned_tree() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())

    def step(x: Any, y: Any) -> None:
        values = mr.unmirror(params)
        gradients = mr.get_replica_context().all_reduce("SUM", jax.grad(loss_of)(values, x, y))
        mr.assign(params, jax.tree.map(lambda p, g: p - RATE * g, values, gradients))

    return step, lambda: params


def optimizer() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())
    update = mr.optimizers.SGD(RATE)

    def step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(params, x, y)
        update.apply(tape.gradient(loss, params), params)

    return step, lambda: params


def reduced_loss() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())

    def step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.get_replica_context().all_reduce("SUM", loss_of(params, x, y))
        # Every replica's loss is the sum of all: with each one's cotangent, R times each gradient, and not yet summed.
        gradients = jax.tree.map(
            lambda g: g / mr.get_replica_context().num_replicas_in_sync, tape.gradient(loss, params)
        )
        gradients = mr.get_replica_context().all_reduce("SUM", gradients)
        for name, variable in params.items():
            variable.assign_sub(RATE * gradients[name])

    return step, lambda: params


def optax_in_run() -> tuple[Step, Callable[[], Any]]:
    transform = optax.sgd(RATE, momentum=0.0)
    params = mr.mirror(start())
    state = mr.mirror(transform.init(start()))

    def step(x: Any, y: Any) -> None:
        values, before = mr.unmirror(params), mr.unmirror(state)
        gradients = mr.get_replica_context().all_reduce("MEAN", jax.grad(mean_of)(values, x, y))
        updates, after = transform.update(gradients, before, values)
        mr.assign(params, optax.apply_updates(values, updates))
        mr.assign(state, after)

    return step, lambda: params


def optax_under_jit() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())

    @jax.jit
    def updated(values: Any, gradients: Any) -> Any:
        return jax.tree.map(lambda p, g: p - RATE * g, values, gradients)

    def step(x: Any, y: Any) -> None:
        values = mr.unmirror(params)
        gradients = mr.get_replica_context().all_reduce("MEAN", jax.grad(mean_of)(values, x, y))
        mr.assign(params, updated(values, gradients))

    return step, lambda: params


def merged() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())

    def step(x: Any, y: Any) -> None:
        gradients = jax.grad(loss_of)(mr.unmirror(params), x, y)

        def merge(strategy: Any, gradients: Any) -> None:
            sums = strategy.reduce("SUM", gradients, axis=None)
            mr.assign(params, jax.tree.map(lambda v, g: v.read_value() - RATE * g, params, sums))

        mr.get_replica_context().merge_call(merge, args=(gradients,))

    return step, lambda: params


def gathered() -> tuple[Step, Callable[[], Any]]:
    params = mr.mirror(start())

    def step(x: Any, y: Any) -> None:
        x, y = mr.get_replica_context().all_gather((x, y), axis=0)
        values = mr.unmirror(params)
        mr.assign(params, jax.tree.map(lambda p, g: p - RATE * g, values, jax.grad(mean_of)(values, x, y)))

    return step, lambda: params


class Linear(nnx.Module):
    def __init__(self) -> None:
        self.w, self.b = nnx.Param(start()["w"]), nnx.Param(start()["b"])

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


def nnx_optimizer() -> tuple[Step, Callable[[], Any]]:
    model = Linear()
    update = nnx.Optimizer(model, optax.sgd(RATE, momentum=0.0), wrt=nnx.Param)

    def step(x: Any, y: Any) -> None:
        gradients = nnx.grad(lambda model: jnp.sum((model(x) - y) ** 2) / BATCH)(model)
        update.update(model, gradients)

    return step, lambda: {"w": model.w[...], "b": model.b[...]}


def keras_optimizer() -> tuple[Step, Callable[[], Any]]:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.set_weights([np.asarray(start()["w"]), np.asarray(start()["b"])])
    update = keras.optimizers.SGD(RATE)
    update.build(model.trainable_variables)

    def step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = jnp.sum((model(x) - y) ** 2) / BATCH
        update.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step, lambda: dict(zip("wb", (w.value for w in model.weights), strict=True))


class Module(eqx.Module):
    w: Any
    b: Any

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


def equinox_module() -> tuple[Step, Callable[[], Any]]:
    model = mr.mirror(Module(**start()))

    def step(x: Any, y: Any) -> None:
        values = mr.unmirror(model)
        gradients = eqx.filter_grad(lambda model: jnp.mean((model(x) - y) ** 2))(values)
        gradients = mr.get_replica_context().all_reduce("MEAN", gradients)
        mr.assign(model, eqx.apply_updates(values, jax.tree.map(lambda g: -RATE * g, gradients)))

    return step, lambda: {"w": model.w, "b": model.b}


PATHS = {
    made.__name__: made
    for made in (
        assigned_all_reduce,
        assigned_tree,
        optimizer,
        reduced_loss,
        optax_in_run,
        optax_under_jit,
        merged,
        gathered,
        nnx_optimizer,
        keras_optimizer,
        equinox_module,
    )
}


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS, ids=[f"{d}x{r // d}" for d, r in LAYOUTS])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.sampled(12)
@pytest.mark.first(3)
def test_every_update_path_works_on_every_layout(path, devices, replicas, deterministic):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        step, parameters = PATHS[path]()
    x, y = (np.split(array, replicas) for array in data())
    batch = [
        strategy.distribute_values_from_function(lambda c, z=z: jnp.asarray(z[c.replica_id_in_sync_group]))
        for z in (x, y)
    ]
    compiled = mr.function(lambda *batch: strategy.run(step, args=batch))
    for _ in range(STEPS):
        compiled(*batch)
    found = jax.tree.map(np.asarray, mr.unmirror(parameters()))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, expected())
