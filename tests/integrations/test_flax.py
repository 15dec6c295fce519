"""Flax NNX models on variables of a strategy: eager and compiled, with state that NNX guards against other traces."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr

BATCH, STEPS = 8, 4
both_ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


class Recurrent(nnx.Module):
    """Linear, LayerNorm, LSTM, Linear."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.LayerNorm(6, rngs=rngs)
        self.memory = nnx.RNN(nnx.LSTMCell(6, 5, rngs=rngs))
        self.outer = nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.outer(self.memory(jnp.tanh(self.norm(self.inner(x))))[:, -1])


class Noisy(nnx.Module):
    """What NNX refuses to change under another trace: statistics and random counts."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.outer = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.outer(self.dropout(self.norm(self.inner(x))))[:, 0]


def two() -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:2])


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(BATCH, 3, 4)).astype("float32")
    return x, x.sum((1, 2))[:, None]


def single_device() -> tuple[list[float], Any]:
    """Plain NNX: `nnx.value_and_grad` and `nnx.Optimizer`."""
    model = Recurrent(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
    x, y = data()

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    return [float(step(model, optimizer)) for _ in range(STEPS)], nnx.as_pure(nnx.state(model, nnx.Param))


def updates(how: str, model: Any) -> Callable[[Any, Any], Any]:
    """The ways of applying gradients, from (gradients, parameters)."""
    if how == "nnx":
        optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
        return lambda grads, _: optimizer.update(model, grads)
    ours = mr.optimizers.Optimizer(optax.adam(0.01))
    if how == "trees":
        return lambda grads, params: ours.apply_gradients([(grads, params)])
    return lambda grads, params: ours.apply_gradients(zip(jax.tree.leaves(grads), jax.tree.leaves(params), strict=True))


def train(how: str, replicas: int, late: bool = False) -> tuple[list[float], Any]:
    """The custom loop; `late` mirrors a model that was made outside the scope."""
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    model = Recurrent(nnx.Rngs(0)) if late else None
    with strategy.scope():
        model = mr.mirror(model) if late else Recurrent(nnx.Rngs(0))
        update = updates(how, model)

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(((model(x) - y) ** 2)[:, 0])
        params = nnx.state(model, nnx.Param)
        update(tape.gradient(loss, params), params)
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    step = mr.function(step)
    losses = [float(step(x, y)) for x, y in strategy.distribute_dataset([data()] * STEPS)]
    return losses, nnx.as_pure(nnx.state(mr.unmirror(model), nnx.Param))


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], Any]:
    return single_device()


def assert_same(mine: tuple[list[float], Any], theirs: tuple[list[float], Any]) -> None:
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), mine[1], theirs[1])


@pytest.mark.parametrize(
    ("how", "replicas"),
    [("nnx", 4), ("pairs", 2), *(pytest.param("nnx", count, marks=pytest.mark.slow) for count in (1, 2))],
)
def test_compiled_training_equals_a_single_device(how: str, replicas: int, expected: Any) -> None:
    assert_same(train(how, replicas), expected)


@pytest.mark.slow
def test_eager_steps_equal_compiled_ones() -> None:
    results = []
    for compiled in (False, True):
        strategy = two()
        with strategy.scope():
            model = Recurrent(nnx.Rngs(0))
            optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

        def replica_step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss(((model(x) - y) ** 2)[:, 0])
            optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))

        def step(x: Any, y: Any, strategy: Any = strategy, replica_step: Any = replica_step) -> None:
            strategy.run(replica_step, args=(x, y))

        (mr.function(step) if compiled else step)(*next(iter(strategy.distribute_dataset([data()]))))
        results.append(([], nnx.as_pure(nnx.state(mr.unmirror(model), nnx.Param))))
    assert_same(*results)


def test_a_model_can_be_mirrored_afterwards(expected: Any) -> None:
    assert_same(train("trees", 2, late=True), expected)


@both_ways
def test_statistics_are_the_mean_over_replicas(compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        layer = nnx.BatchNorm(3, momentum=0.5, rngs=nnx.Rngs(0))
    x = strategy.distribute_values_from_function(
        lambda context: np.full((4, 3), 1.0 + 2 * context.replica_id_in_sync_group, np.float32)
    )

    def replica_step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = layer(x).sum()
        return tape.gradient(loss, nnx.state(layer, nnx.Param))["bias"][...]

    def step(x: Any) -> Any:
        return strategy.run(replica_step, args=(x,))

    gradients = (mr.function(step) if compiled else step)(x)
    assert [gradient.tolist() for gradient in strategy.local_results(gradients)] == [[4.0] * 3] * 2
    np.testing.assert_allclose(layer.mean[...], 0.5 * np.full(3, 2.0))
    assert [part.numpy().tolist() for part in layer.mean._raw_value.values] == [[0.5] * 3, [1.5] * 3]


@both_ways
def test_dropout_differs_between_replicas_and_steps(compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        model = Noisy(nnx.Rngs(0))

    def step() -> Any:
        return strategy.run(lambda: model.dropout(jnp.ones(64)))

    run = mr.function(step) if compiled else step
    masks = [tuple(np.asarray(mask).tolist()) for _ in range(2) for mask in strategy.local_results(run())]
    assert len(set(masks)) == 4
    assert int(model.dropout.rngs.count[...]) == 2


def test_eager_and_compiled_steps_draw_the_same_numbers() -> None:
    results = []
    for compiled in (False, True):
        strategy = two()
        with strategy.scope():
            model = Noisy(nnx.Rngs(0))

        def step(x: Any, strategy: Any = strategy, model: Any = model) -> Any:
            return strategy.run(model, args=(x,))

        run = mr.function(step) if compiled else step
        x = next(iter(strategy.distribute_dataset([data()[0][:, 0]])))
        results.append(np.concatenate([np.asarray(one) for one in strategy.local_results(run(x))]))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_a_plain_model_may_change_its_state_under_a_tape() -> None:
    model = Noisy(nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    with mr.GradientTape() as tape:
        tape.watch(params)
        loss = model(jnp.ones((2, 4))).sum()
    assert tape.gradient(loss, params)["outer"]["bias"][...].tolist() == [2.0]
    assert float(model.norm.mean[...].sum()) != 0.0


def test_a_plain_model_is_still_refused_in_a_compiled_function() -> None:
    model = Noisy(nnx.Rngs(0))
    with pytest.raises(Exception, match="from a different trace level"):
        mr.function(lambda x: model(x))(jnp.ones((2, 4)))


def test_attributes_are_not_set_in_a_compiled_function() -> None:
    strategy = two()
    with strategy.scope():
        model = Noisy(nnx.Rngs(0))
    with pytest.raises(Exception, match="Cannot mutate"):
        mr.function(lambda: strategy.run(model.eval))()


@both_ways
def test_transforms_of_nnx_work_in_a_replica(compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        model = Noisy(nnx.Rngs(0))
        model.dropout.rate = 0.1
        optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)
    x, y = data()[0][:, 0], data()[1][:, 0]

    def replica_step(x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).sum() / BATCH)(model)
        optimizer.update(model, grads)
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    run = mr.function(step) if compiled else step
    losses = [float(run(*batch)) for batch in strategy.distribute_dataset([(x, y)] * 2)]
    assert losses[1] < losses[0]
    assert int(optimizer.step[...]) == int(model.dropout.rngs.count[...]) == 2
    first, second = (part.numpy().tolist() for part in model.norm.mean._raw_value.values)
    assert first != second


def test_compiled_functions_of_nnx_take_mirrored_models() -> None:
    with two().scope():
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

    @nnx.jit
    def double(model: Any) -> Any:
        model.kernel[...] = model.kernel[...] * 2
        return model(jnp.ones((1, 2)))

    before = np.asarray(model.kernel[...])
    np.testing.assert_allclose(double(model), [[2 * before.sum()]], rtol=1e-6)
    np.testing.assert_allclose(model.kernel[...], 2 * before)
    assert isinstance(model.kernel._raw_value, mr.Variable)


def test_metrics_are_summed_over_replicas() -> None:
    strategy = two()
    with strategy.scope():
        metric = nnx.metrics.Average()

    def replica() -> None:
        metric.update(values=jnp.float32(mr.get_replica_context().replica_id_in_sync_group))

    strategy.run(replica)
    mr.function(lambda: strategy.run(replica))()
    assert float(metric.compute()) == 0.5


def test_variables_keep_their_types_and_names() -> None:
    strategy = two()
    with strategy.scope():
        model = mr.mirror(Noisy(nnx.Rngs(0)))
    assert type(model.inner.kernel) is nnx.Param
    assert jax.tree.structure(nnx.state(model)) == jax.tree.structure(nnx.state(Noisy(nnx.Rngs(0))))
    late = mr.mirror(Noisy(nnx.Rngs(0)), strategy)
    assert late.inner.kernel._raw_value.name == "inner/kernel"
    assert late.norm.mean._raw_value.per_replica
    assert not late.dropout.rngs.count._raw_value.trainable


def test_copies_onto_another_number_of_replicas() -> None:
    with two().scope():
        model = Noisy(nnx.Rngs(0))
    kernel = np.asarray(model.inner.kernel[...])
    clone, deep = nnx.clone(model), copy.deepcopy(model)
    assert not isinstance(clone.inner.kernel._raw_value, mr.Variable)
    deep.inner.kernel[...] = jnp.zeros((4, 6))
    with mr.MirroredStrategy(jax.devices()[:4]).scope():
        mr.mirror(model)
    assert len(model.inner.kernel._raw_value.values) == 4
    np.testing.assert_array_equal(model.inner.kernel[...], kernel)
    np.testing.assert_array_equal(clone.inner.kernel[...], kernel)


def test_states_are_put_back() -> None:
    with two().scope():
        model, other = (nnx.Linear(2, 1, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    shrunk = jax.tree.map(lambda p: p * 0.5, nnx.state(other))
    nnx.update(model, shrunk)
    np.testing.assert_allclose(model.kernel[...], 0.5 * other.kernel[...])
    assert len(model.kernel._raw_value.values) == 2


def test_keys_may_be_replaced() -> None:
    strategy = two()
    with strategy.scope():
        model = Noisy(nnx.Rngs(0))
    model.dropout.rngs.key[...] = jax.random.key(5)
    expected = jax.random.key_data(jax.random.key(5)).tolist()
    assert jax.random.key_data(model.dropout.rngs.key[...]).tolist() == expected
    keys = strategy.run(lambda: jax.random.key_data(model.dropout.rngs.key[...]))
    first, second = (np.asarray(key).tolist() for key in strategy.local_results(keys))
    assert first == expected
    assert second == jax.random.key_data(jax.random.fold_in(jax.random.key(5), 1)).tolist()


def test_the_optimizer_says_where_to_call_it() -> None:
    with two().scope():
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with pytest.raises(mr.errors.ContextError, match="cross-replica context"):
        optimizer.update(model, nnx.state(model, nnx.Param))


def test_an_optimizer_made_outside_the_scope_joins_its_model() -> None:
    strategy = two()
    with strategy.scope():
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    def replica() -> None:
        with mr.GradientTape() as tape:
            loss = model(jnp.ones((1, 2))).sum()
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))

    mr.function(lambda: strategy.run(replica))()
    assert int(optimizer.step[...]) == 1
    assert optimizer.step._raw_value.layout is not None


def test_a_value_of_another_kind_is_refused() -> None:
    with two().scope():
        param = nnx.Param(jnp.ones(2))
    with pytest.raises(mr.errors.ArgumentTypeError, match="a str for a variable that lives on"):
        param.set_value("weights")


def test_a_gradient_that_was_not_summed_is_refused() -> None:
    strategy = two()
    with strategy.scope():
        param = nnx.Param(jnp.ones(2))

    def replica() -> None:
        param[...] = param[...] * mr.get_replica_context().replica_id_in_sync_group

    with pytest.raises(mr.errors.SynchronyError, match="Param"):
        mr.function(lambda: strategy.run(replica))()
