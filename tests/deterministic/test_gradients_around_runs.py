"""Gradients of a tape around a run and a reduction have equal bits on every number of devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

REPLICAS = 6
_random = np.random.default_rng(0)
ROWS = _random.normal(size=(2 * REPLICAS, 5)).astype(np.float32)
UPSTREAM = jnp.asarray(_random.normal(size=5).astype(np.float32))
WEIGHT = jnp.asarray(_random.normal(size=5).astype(np.float32))


def linear(x, w):
    return (x * w).sum(0)


def wave(x, w):
    return jnp.sin(x * w).mean(0)


def cube(x, w):
    return ((x * w) ** 3)[0]


def of_reduction(op):
    return lambda strategy, values: strategy.reduce(op, values, axis=None)


def of_rows(strategy, values):
    return strategy.gather(values, axis=0).reshape(REPLICAS, 5).sum(0)


def of_components(strategy, values):
    return sum(strategy.experimental_local_results(values))


COMBINED = {"SUM": of_reduction("SUM"), "MEAN": of_reduction("MEAN"), "gather": of_rows, "components": of_components}


def gradient(devices, body, combine, how):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, deterministic=True)
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: ROWS[2 * context.replica_id_in_sync_group :][:2]
    )
    with strategy.scope():
        variable = mr.Variable(WEIGHT)

    @mr.function
    def around_variable():
        return combine(strategy, strategy.run(lambda x: body(x, variable), args=(batch,)))

    def run(w):
        if how == "argument":
            return strategy.run(body, args=(batch, w))
        return strategy.run(lambda x: body(x, w), args=(batch,))

    def step(w):
        source = w if how in ("argument", "closed over") else variable
        with mr.GradientTape() as tape:
            tape.watch(source)
            y = around_variable() if source is variable else combine(strategy, run(w))
        return tape.gradient(y, source, output_gradients=UPSTREAM)

    return np.asarray((step if how == "function in the block" else mr.function(step))(WEIGHT))


@pytest.mark.sampled(3)
@pytest.mark.first(2)
@pytest.mark.parametrize("how", ["argument", "variable", "function in the block", "closed over"])
@pytest.mark.parametrize("combined", list(COMBINED))
@pytest.mark.parametrize("body", [linear, wave, cube])
def test_bits_do_not_depend_on_the_devices(how, combined, body):
    expected = gradient(1, body, COMBINED[combined], how)
    for devices in (2, 3, 4):
        assert gradient(devices, body, COMBINED[combined], how).tobytes() == expected.tobytes()
