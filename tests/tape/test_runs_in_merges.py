"""Tapes of replicas over a `merge_call` whose function runs the replicas again, where they call collectives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

X = np.asarray([0.3, 0.5, 0.1, 0.2], np.float32)


def sine_of_sum(strategy: Any, x: Any) -> Any:
    return jnp.sin(strategy.reduce("SUM", x, axis=None))


COLLECTIVES = {
    "merge_call": lambda context, x: context.merge_call(sine_of_sum, args=(x,)),
    "all_reduce": lambda context, x: jnp.sin(context.all_reduce("SUM", x)),
    "all_gather": lambda context, x: jnp.sin(jnp.sum(context.all_gather(x[None], 0))),
    "merge_call in merge_call": lambda context, x: merged(lambda own: merged_sine(own), x),
}


def merged(function: Any, x: Any) -> Any:
    context = mr.get_replica_context()
    return context.merge_call(lambda strategy, own: strategy.run(function, args=(own,)), args=(x,))


def merged_sine(x: Any) -> Any:
    return mr.get_replica_context().merge_call(sine_of_sum, args=(x,))


def gradient(function: Any, x: Any, order: int) -> Any:
    if order == 0:
        return function(x)
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = gradient(function, x, order - 1)
    return tape.gradient(y, x)


def loss(x: Any) -> Any:
    return jnp.sum(x * jnp.sin(jnp.sum(x)))


WANTED = [jax.grad(loss)(X), jax.grad(lambda x: jnp.sum(jax.grad(loss)(x)))(X)]


@pytest.mark.first(16)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("devices", [4, 2, 3, 1])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_each_order(
    order: int, devices: int, collective: str, deterministic: bool, compiled: bool
) -> None:
    names = [f"CPU:{k}" for k in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=len(X), deterministic=deterministic)
    values = strategy.experimental_distribute_values_from_function(lambda context: X[context.replica_id_in_sync_group])

    def inner(own: Any) -> Any:
        return own * COLLECTIVES[collective](mr.get_replica_context(), own)

    def step(x: Any) -> Any:
        return strategy.run(lambda own: gradient(lambda one: merged(inner, one), own, order), args=(x,))

    results = (mr.function(step) if compiled else step)(values)
    found = np.stack(strategy.experimental_local_results(results))
    np.testing.assert_allclose(found, WANTED[order - 1], rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("collective", [None, "all_reduce", "merge_call"])
def test_a_read_in_a_run_in_a_merge_is_refused(collective: str | None, devices: int, compiled: bool) -> None:
    """The tape does not see it, and the gradient of the variable was None or zero without an error."""
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=2)
    with strategy.scope():
        v = mr.Variable(2.0, name="v")
    values = strategy.experimental_distribute_values_from_function(lambda context: X[context.replica_id_in_sync_group])

    def inner(own: Any) -> Any:
        return own * v if collective is None else COLLECTIVES[collective](mr.get_replica_context(), own * v)

    def step(x: Any) -> Any:
        return strategy.run(lambda own: gradient(lambda one: merged(inner, one), own, 1), args=(x,))

    with pytest.raises(mr.errors.TapeError, match="reads the trainable variable 'v'"):
        (mr.function(step) if compiled else step)(values)
