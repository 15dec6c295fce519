"""Flax NNX models backed by variables of a strategy: eager and compiled, with state that NNX ties to a trace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr
from mirrored.integrations.flax.holding import held
from mirrored.integrations.flax.random_state import ReplicaKey

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
    """The custom loop; `late` mirrors a model that was created outside the scope."""
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
@pytest.mark.first(1)
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


@pytest.mark.long
def test_a_model_can_be_mirrored_afterwards(expected: Any) -> None:
    assert_same(train("trees", 2, late=True), expected)


@both_ways
@pytest.mark.long
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
@pytest.mark.first(1)
@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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
@pytest.mark.long
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
    tagged = jax.random.fold_in(jax.random.key(5), np.uint32(0xFFFFFFFF))
    assert second == jax.random.key_data(jax.random.fold_in(tagged, 1)).tolist()


@pytest.mark.first(1)
@both_ways
@pytest.mark.parametrize("shape", [(), (2,)])
def test_no_draw_of_one_replica_is_the_key_of_another(shape: tuple[int, ...], compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=3)
    with strategy.scope():
        rngs = nnx.Rngs(noise=jax.random.split(jax.random.key(0), shape) if shape else 0)

    def draws() -> Any:
        base = rngs.noise.key[...]
        draw = jax.vmap(jax.random.fold_in, (0, None)) if shape else jax.random.fold_in  # as `rngs.noise()` does
        return [jax.random.key_data(key) for key in (base, *(draw(base, count) for count in range(4)))]

    step = lambda: strategy.run(draws)  # noqa: E731
    results = strategy.experimental_local_results((mr.function(step) if compiled else step)())
    rows = [tuple(np.ravel(key).tolist()) for replica in results for key in replica]
    assert len(set(rows)) == len(rows)


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
    assert optimizer.step._raw_value.device_assignment is not None


def test_a_value_of_another_kind_is_refused() -> None:
    with two().scope():
        param = nnx.Param(jnp.ones(2))
    with pytest.raises(mr.errors.ArgumentTypeError, match="a str was assigned to mirrored variable"):
        param.set_value("weights")


def test_a_gradient_that_was_not_summed_is_refused() -> None:
    strategy = two()
    with strategy.scope():
        param = nnx.Param(jnp.ones(2))

    def replica() -> None:
        param[...] = param[...] * mr.get_replica_context().replica_id_in_sync_group

    with pytest.raises(mr.errors.ReplicaDivergenceError, match="Param"):
        mr.function(lambda: strategy.run(replica))()


def test_parameters_set_from_an_array_that_is_written_to_again() -> None:
    raw = np.empty(24 * 4 + 64, np.uint8)
    offset = -raw.ctypes.data % 64  # an array that CPU devices alias
    buffer = raw[offset : offset + 24 * 4].view(np.float32).reshape(4, 6)
    with mr.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        buffer[...] = 1
        made, taken = nnx.Param(buffer), nnx.Param(jnp.zeros((4, 6)))
        taken.set_value(buffer)
        buffer[...] = 5
    for parameter in (made, taken):
        assert np.all(np.asarray(parameter[...]) == 1)


@both_ways
@pytest.mark.long
def test_modes_are_set_after_a_transform_of_nnx_in_a_replica(compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        model = Noisy(nnx.Rngs(0))
    kept: list[Any] = []

    def replica_step(x: Any) -> Any:
        loss, _ = nnx.value_and_grad(lambda model: model(x).sum())(model)
        kept.append(nnx.clone(model))  # made in the trace: it keeps tracers
        return loss

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    run, x = mr.function(step) if compiled else step, jnp.ones((2, 4))
    run(x)
    model.eval()
    assert model.norm.use_running_average
    assert model.dropout.deterministic
    np.testing.assert_array_equal(model(x), model(x))
    model.train()
    run(x)
    assert not model.dropout.deterministic
    model.note = "more"
    if compiled:
        with pytest.raises(Exception, match="Cannot mutate"):
            kept[0].inner.kernel = nnx.Param(jnp.zeros((4, 6)))


def updated_by(how: str, model: Any) -> Callable[[Any], Any]:
    """Ways of changing a model without a strategy in a replica."""
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(x: Any) -> None:
        if how == "forward":
            model(x)
        elif how == "value_and_grad":
            nnx.value_and_grad(lambda model: model(x).sum())(model)
        elif how == "optimizer":
            optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
        else:
            model.inner.kernel[...] = model.inner.kernel[...] + 1.0

    return step


@both_ways
@pytest.mark.parametrize("how", ["forward", "value_and_grad", "optimizer", "assignment"])
@pytest.mark.first(2)
@pytest.mark.long
def test_a_model_made_outside_the_scope_is_not_changed_by_replicas_in_turn(how: str, compiled: bool) -> None:
    strategy, model = two(), Noisy(nnx.Rngs(0))
    before = jax.tree.map(jnp.array, nnx.as_pure(nnx.state(model, (nnx.Param, nnx.BatchStat, nnx.RngCount))))
    replica_step = updated_by(how, model)
    step: Any = lambda x: strategy.run(replica_step, args=(x,))  # noqa: E731
    step = mr.function(step) if compiled else step
    with pytest.raises(Exception, match="mirrored.mirror|different trace level") as caught:
        step(jnp.ones((2, 4)))
    if not compiled:
        assert isinstance(caught.value, mr.errors.ContextError)
    after = nnx.as_pure(nnx.state(model, (nnx.Param, nnx.BatchStat, nnx.RngCount)))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    mr.mirror(model, strategy)
    step(jnp.ones((2, 4)))


@pytest.mark.long
def test_models_without_a_strategy_are_read_and_made_in_replicas() -> None:
    """A teacher's predictions; the functional path, which makes its model in the replica."""
    strategy, model = two(), nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    graph, state = nnx.split(Noisy(nnx.Rngs(0)))

    def replica_step(state: Any, x: Any) -> Any:
        made = nnx.merge(graph, state)
        made(x)
        gradients = nnx.grad(lambda model: model(x).sum())(model)
        return model(x), gradients["bias"][...], made.norm.mean[...]

    out, bias, mean = strategy.run(replica_step, args=(state, jnp.ones((2, 4))))
    assert [one.shape for one in strategy.local_results(out)] == [(2, 1)] * 2
    assert [one.tolist() for one in strategy.local_results(bias)] == [[2.0]] * 2
    assert [one.shape for one in strategy.local_results(mean)] == [(6,)] * 2
    single = mr.OneDeviceStrategy("CPU:0")
    plain = Noisy(nnx.Rngs(0))
    single.run(lambda: plain(jnp.ones((2, 4))))  # one replica changes what it likes
    assert float(plain.norm.mean[...].sum()) != 0.0


class Deep(nnx.Module):
    """Modules in modules and in lists."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.noisy = Noisy(rngs)
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(2)])


def test_variables_are_named_by_their_paths() -> None:
    strategy = two()
    with strategy.scope():
        model = Deep(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    mirrored = mr.mirror(Deep(nnx.Rngs(0)), strategy)

    def names(model: Any) -> dict[str, str]:
        flat = nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat, nnx.RngCount)))
        return {"/".join(map(str, path)): held(variable).name for path, variable in flat}

    assert all(path == name for path, name in names(model).items())
    assert names(model) == names(mirrored)
    assert "layers/1/kernel" in names(model)
    assert optimizer.step._raw_value.name == "step"

    def replica() -> None:
        kernel = model.layers[1].kernel
        kernel[...] = kernel[...] * mr.get_replica_context().replica_id_in_sync_group

    for run in (strategy.run, lambda call: mr.function(lambda: strategy.run(call))()):
        with pytest.raises(mr.errors.ReplicaDivergenceError, match="layers/1/kernel"):
            run(replica)
    assert "layers/1/kernel" in repr(held(model.layers[1].kernel))


class Scale(nnx.Module):
    """A module without functions and random keys, which are not pickled."""

    def __init__(self) -> None:
        self.factor = nnx.Param(jnp.full(3, 2.0))


def test_a_mirrored_model_is_pickled_by_its_values() -> None:
    with two().scope():
        model = Scale()
    with pytest.raises(mr.errors.ArgumentTypeError, match=r"mirrored\.unmirror\(model\)"):
        pickle.dumps(model)
    loaded = pickle.loads(pickle.dumps(mr.unmirror(model)))
    assert loaded.factor[...].tolist() == [2.0] * 3


@pytest.mark.long
def test_an_unmirrored_model_has_values_of_its_own() -> None:
    strategy = two()
    with strategy.scope():
        model = Noisy(nnx.Rngs(0))
    plain = mr.unmirror(model)
    before = np.asarray(model.inner.kernel[...])
    for variable in jax.tree.leaves(nnx.state(plain), is_leaf=lambda one: isinstance(one, nnx.Variable)):
        assert not isinstance(held(variable), (mr.Variable, ReplicaKey))
    plain.inner.kernel[...] = jnp.zeros((4, 6))
    plain(jnp.ones((2, 4)))
    np.testing.assert_array_equal(model.inner.kernel[...], before)
    assert float(model.norm.mean[...].sum()) == 0.0
    assert int(model.dropout.rngs.count[...]) == 0
