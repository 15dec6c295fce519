"""Equinox modules backed by variables of a strategy, eager and compiled."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr

BATCH, STEPS = 8, 3
both_ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


class Model(eqx.Module):
    """An LSTM cell under `lax.scan`, a norm and a perceptron; with a static field."""

    cell: eqx.nn.LSTMCell
    norm: eqx.nn.LayerNorm
    outer: eqx.nn.MLP
    scale: float = eqx.field(static=True)

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.cell = eqx.nn.LSTMCell(4, 5, key=first)
        self.norm = eqx.nn.LayerNorm(5)
        self.outer = eqx.nn.MLP(5, 1, 6, 1, key=second)
        self.scale = 2.0

    def __call__(self, x: Any) -> Any:
        start = (jnp.zeros(5), jnp.zeros(5))
        (hidden, _), _ = jax.lax.scan(lambda state, one: (self.cell(one, state), None), start, x)
        return self.scale * self.outer(self.norm(hidden))[0]


class Normed(eqx.Module):
    """Batch statistics in an `eqx.nn.State`."""

    norm: eqx.nn.BatchNorm

    def __init__(self) -> None:
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", momentum=0.5, mode="ema")

    def __call__(self, x: Any, state: Any) -> Any:
        return self.norm(x, state)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(BATCH, 3, 4)).astype("float32")
    return x, x.sum((1, 2))


def single_device() -> tuple[list[float], Any]:
    """Plain Equinox with optax."""
    model, transform = Model(jax.random.key(0)), optax.adam(0.01)
    state = transform.init(eqx.filter(model, eqx.is_inexact_array))
    x, y = data()
    losses = []

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        loss, grads = eqx.filter_value_and_grad(lambda model: ((jax.vmap(model)(x) - y) ** 2).mean())(model)
        updates, state = transform.update(grads, state)
        return eqx.apply_updates(model, updates), state, loss

    for _ in range(STEPS):
        model, state, loss = step(model, state)
        losses.append(float(loss))
    return losses, model


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], Any]:
    return single_device()


@pytest.mark.parametrize(
    ("replicas", "compiled"), [(1, True), pytest.param(2, False, marks=pytest.mark.slow), (4, True)]
)
@pytest.mark.first(1)
def test_training_equals_a_single_device(replicas: int, compiled: bool, expected: Any) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model, optimizer = mr.mirror(Model(jax.random.key(0))), mr.optimizers.Optimizer(optax.adam(0.01))

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss((jax.vmap(model)(x) - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, model), model)])
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    step = mr.function(step) if compiled else step
    losses = [float(step(x, y)) for x, y in strategy.distribute_dataset([data()] * STEPS)]
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    mine, theirs = (eqx.filter(one, eqx.is_inexact_array) for one in (mr.unmirror(model), expected[1]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), mine, theirs)


@both_ways
@pytest.mark.long
def test_statistics_are_the_mean_over_replicas(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    model, state = eqx.nn.make_with_state(Normed)()
    with strategy.scope():
        model, state = mr.mirror(model), mr.mirror(state)
    x = strategy.distribute_values_from_function(
        lambda context: np.full((4, 3), 1.0 + 2 * context.replica_id_in_sync_group, np.float32)
    )

    def replica_step(x: Any) -> None:
        with mr.GradientTape():
            call = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            _, new = call(x, mr.unmirror(state))
        mr.assign(state, new)

    def step(x: Any) -> None:
        strategy.run(replica_step, args=(x,))

    (mr.function(step) if compiled else step)(x)
    means = [one for one in jax.tree.leaves(mr.unmirror(state)) if one.shape == (3,)]
    np.testing.assert_allclose(means[0], np.full(3, 2.0), rtol=1e-5)


def test_modules_keep_their_class_and_static_parts() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        model = mr.mirror(Model(jax.random.key(0)))
    assert isinstance(model, Model)
    assert model.scale == 2.0
    assert model.cell.weight_ih.name == "cell/weight_ih"
    plain = mr.unmirror(model)
    assert eqx.tree_equal(plain, Model(jax.random.key(0)))
    assert eqx.filter_jit(plain)(jnp.ones((3, 4))).shape == ()


def test_states_move_to_another_number_of_replicas() -> None:
    _, state = eqx.nn.make_with_state(Normed)()
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        state = mr.mirror(state)
    with mr.MirroredStrategy(jax.devices()[:4]).scope():
        moved = mr.mirror(state)
    variables = jax.tree.leaves(moved, is_leaf=lambda leaf: isinstance(leaf, mr.Variable))
    assert {len(variable.values) for variable in variables} == {4}
