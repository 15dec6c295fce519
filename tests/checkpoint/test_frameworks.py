"""Equinox modules, Flax NNX modules and optax states in checkpoints, as they are."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from mirrored.checkpoint import Checkpoint, CheckpointReader


@pytest.mark.long
def test_equinox_module_with_its_optax_state(tmp_path):
    def make(seed):
        model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(seed))
        return Checkpoint(model=model, state=optax.adam(0.1).init(eqx.filter(model, eqx.is_array)))

    source, target = make(0), make(1)
    path = source.write(tmp_path / "c")
    old = target.model
    target.restore(path).assert_consumed()
    assert {"model/layers/0/weight", "state/0/count"} <= set(CheckpointReader(path).names)
    assert eqx.tree_equal(target.model, source.model)
    assert not eqx.tree_equal(old, source.model)


def test_a_layer_that_a_frozen_model_has_twice(tmp_path):
    class Twice(eqx.Module):
        first: eqx.nn.Linear
        second: eqx.nn.Linear

    layers = [eqx.nn.Linear(2, 2, key=jax.random.key(seed)) for seed in (0, 1)]
    path = Checkpoint(model=Twice(layers[0], layers[0])).write(tmp_path / "c")
    target = Checkpoint(model=Twice(layers[1], layers[1]))
    target.restore(path).assert_consumed()
    for layer in (target.model.first, target.model.second):
        np.testing.assert_array_equal(layer.weight, layers[0].weight)


@pytest.mark.long
def test_nnx_module(tmp_path):
    source, target = (nnx.Linear(2, 3, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    path = Checkpoint(model=source).write(tmp_path / "c")
    Checkpoint(model=target).restore(path).assert_consumed()
    np.testing.assert_array_equal(target.kernel[...], source.kernel[...])
    np.testing.assert_array_equal(target(jnp.ones((1, 2))), source(jnp.ones((1, 2))))


@pytest.mark.parametrize(
    "make", [nnx.Rngs, lambda seed: nnx.Dropout(0.5, rngs=nnx.Rngs(seed))], ids=["Rngs", "Dropout"]
)
def test_random_streams_of_nnx(tmp_path, make):
    source, target = make(0), make(1)
    draw = lambda one: (one if isinstance(one, nnx.Rngs) else one.rngs)()  # noqa: E731
    draw(source)
    path = Checkpoint(model=source).write(tmp_path / "c")
    Checkpoint(model=target).restore(path).assert_consumed()
    assert not any("_base_array" in name for name in CheckpointReader(path).names)
    np.testing.assert_array_equal(jax.random.key_data(draw(target)), jax.random.key_data(draw(source)))
