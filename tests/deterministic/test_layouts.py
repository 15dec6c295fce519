"""Programs whose values or gradients cross the border of a run are bit-identical on any number of devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import mirrored as mr

RANDOM = np.random.default_rng(12)
X = (RANDOM.normal(size=(48, 7)) * np.exp(2 * RANDOM.normal(size=(48, 1)))).astype("f")
Y = RANDOM.normal(size=(48, 4)).astype("f")
W = RANDOM.normal(size=(7, 4)).astype("f")
DEVICES = {4: (1, 2, 4), 6: (1, 2, 3, 6), 8: (1, 2, 4, 8)}


def strategy_of(devices, replicas):
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas, deterministic=True)


def around_run(strategy):
    with strategy.scope():
        w = mr.Variable(W)

    def step(x, y):
        with mr.GradientTape() as tape:
            losses = strategy.run(lambda x, y: mr.losses.average_loss(((x @ w - y) ** 2).sum(-1)), args=(x, y))
            loss = strategy.reduce("SUM", losses, axis=None)
        return loss, tape.gradient(loss, w)

    return step


def around_a_compiled_function(strategy):
    with strategy.scope():
        w = mr.Variable(W)

    @mr.function
    def loss_of(x, y):
        losses = strategy.run(lambda x, y: mr.losses.average_loss(((x @ w - y) ** 2).sum(-1)), args=(x, y))
        return strategy.reduce("SUM", losses, axis=None)

    def step(x, y):
        with mr.GradientTape() as tape:
            loss = loss_of(x, y)
        return loss, tape.gradient(loss, w)

    return step


def around_run_with_arguments(strategy):
    with strategy.scope():
        w = mr.Variable(W)

    def step(x, y):
        with mr.GradientTape() as tape:
            doubled = jnp.tanh(w.read_value()) * 2.0
            losses, same = strategy.run(
                lambda x, y, w: (mr.losses.average_loss(((x @ w - y) ** 2).sum(-1)), w), args=(x, y, doubled)
            )
            loss = strategy.reduce("SUM", losses, axis=None) + jnp.sum(same)
        return tape.gradient(loss, w)

    return step


def around_run_with_replicated_results(strategy):
    with strategy.scope():
        w = mr.Variable(W)

    def replica(x, y):
        local = mr.losses.average_loss(((x @ w - y) ** 2).sum(-1))
        return mr.get_replica_context().all_reduce("SUM", local)

    def step(x, y):
        with mr.GradientTape() as tape:
            loss = strategy.run(replica, args=(x, y), out_specs=PartitionSpec())
        return loss, tape.gradient(loss, w)

    return step


def around_run_that_assigns(strategy):
    with strategy.scope():
        w = mr.Variable(W)

    def replica(x, y):
        w.assign(w * 0.9)
        return mr.losses.average_loss(((x @ w - y) ** 2).sum(-1))

    def step(x, y):
        with mr.GradientTape() as tape:
            loss = strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None) + jnp.sum(w * w)
        return loss, tape.gradient(loss, w)

    return step


def around_run_with_components(strategy):
    with strategy.scope():
        scale = mr.Variable(
            np.linspace(0.5, 1.5, 4, dtype="f"), trainable=True, synchronization="ON_READ", aggregation="MEAN"
        )

    def step(x, y):
        with mr.GradientTape() as tape:
            losses = strategy.run(lambda x, y: mr.losses.average_loss(((x @ W * scale - y) ** 2).sum(-1)), args=(x, y))
            loss = strategy.reduce("SUM", losses, axis=None)
        return loss, tape.gradient(loss, scale)

    return step


def running_mean(strategy):
    with strategy.scope():
        mean = mr.Variable(jnp.zeros(7), synchronization="ON_READ", aggregation="MEAN")

    def replica(x, y):
        mean.assign(0.9 * mean + 0.1 * x.mean(0))
        return 0.9 * x[0] + 0.1 * (x @ W).mean()

    return lambda x, y: (jnp.stack(strategy.local_results(strategy.run(replica, args=(x, y)))), mean.read_value())


def contrastive(strategy):
    with strategy.scope():
        w = mr.Variable(W)
        optimizer = mr.optimizers.Adam(0.05)

    def replica(x, y):
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            keys = context.all_gather(jnp.tanh(y @ w.read_value().T @ w), axis=0)
            labels = context.replica_id_in_sync_group * x.shape[0] + jnp.arange(x.shape[0])
            logits = x @ w @ keys.T * 0.1
            loss = mr.losses.average_loss(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return context.all_gather(x * 0.3 + y.sum() * x, axis=1)

    def step(x, y):
        gathered = strategy.run(replica, args=(x, y))
        return w.read_value(), strategy.local_results(gathered)[0]

    return step


def merged(strategy):
    with strategy.scope():
        w = mr.Variable(W)
        mean = mr.Variable(jnp.zeros(4))

    def replica(x, y):
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            h = x @ w
            center = context.merge_call(lambda strategy, value: strategy.reduce("MEAN", value, axis=None), (h.mean(0),))
            loss = mr.losses.average_loss(((h - center - y) ** 2).sum(-1))
        mean.assign(center)
        return context.all_reduce("SUM", tape.gradient(loss, w))

    def step(x, y):
        return strategy.local_results(strategy.run(replica, args=(x, y)))[0], mean.read_value()

    return step


def median(strategy):
    with strategy.scope():
        w = mr.Variable(W, aggregation=mr.collectives.Median())

    def step(x, y):
        strategy.run(lambda x, y: w.assign(0.9 * w + 0.1 * (x.T @ y)), args=(x, y))
        return w.read_value()

    return step


PROGRAMS = [
    around_run,
    around_run_with_arguments,
    around_run_with_replicated_results,
    around_run_that_assigns,
    around_run_with_components,
    running_mean,
    contrastive,
    merged,
    median,
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("replicas", DEVICES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.first(1)
def test_a_program_has_the_same_bits_on_any_number_of_devices(program, replicas):
    found = {}
    for devices in DEVICES[replicas]:
        strategy = strategy_of(devices, replicas)
        step = mr.function(program(strategy))
        for x, y in strategy.experimental_distribute_dataset([(X, Y)] * 3):
            result = step(x, y)
        found[devices] = [np.asarray(leaf) for leaf in (result if isinstance(result, tuple) else (result,))]
    for devices, values in found.items():
        for value, expected in zip(values, found[1], strict=True):
            assert np.isfinite(value).all()
            assert value.tobytes() == expected.tobytes(), (devices, np.abs(value - expected).max())


@pytest.mark.long
def test_a_tape_around_a_compiled_function_has_the_same_bits_on_any_number_of_devices():
    found = set()
    for devices in DEVICES[4]:
        strategy = strategy_of(devices, 4)
        step = around_a_compiled_function(strategy)
        ((x, y),) = list(strategy.experimental_distribute_dataset([(X, Y)]))
        found.add(tuple(np.asarray(value).tobytes() for value in step(x, y)))
    assert len(found) == 1


def test_the_gradient_around_a_run_is_that_of_one_device():
    strategy = strategy_of(2, 4)
    step = mr.function(around_run(strategy))
    ((x, y),) = list(strategy.experimental_distribute_dataset([(X, Y)]))
    _, gradient = step(x, y)
    expected = 2 * X.astype("d").T @ (X.astype("d") @ W - Y) / len(X)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


@pytest.mark.parametrize("called_as", ["compiled", "around a compiled function", "eager"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (4, 4), (1, 4), (2, 8)])
@pytest.mark.sampled(4)
@pytest.mark.first(2)
def test_the_second_derivative_around_a_run_is_that_of_one_device(devices, replicas, deterministic, called_as):
    strategy = mr.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], num_replicas=replicas, deterministic=deterministic
    )
    with strategy.scope():
        w = mr.Variable(W[0])
    batch = next(iter(strategy.experimental_distribute_dataset([X[:8, :4]])))

    def total(x):
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(jnp.sin(x @ w)), args=(x,)), axis=None) ** 2

    called = mr.function(total) if called_as == "around a compiled function" else total

    def second(x):
        with mr.GradientTape() as outer:
            with mr.GradientTape() as inner:
                loss = called(x)
            first = inner.gradient(loss, w)
            penalty = jnp.sum(first**2)
        return first, outer.gradient(penalty, w)

    found = (mr.function(second) if called_as == "compiled" else second)(batch)

    def plain(w):
        return jnp.sum(jnp.sin(X[:8, :4] @ w)) ** 2

    expected = jax.grad(plain)(W[0]), jax.grad(lambda w: jnp.sum(jax.grad(plain)(w) ** 2))(W[0])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize(("devices", "replicas"), [(1, 4), (2, 4), (4, 4)])
@pytest.mark.first(1)
def test_the_gradient_through_a_merge_is_that_of_one_device(devices, replicas):
    strategy = strategy_of(devices, replicas)
    step = mr.function(merged(strategy))
    ((x, y),) = list(strategy.experimental_distribute_dataset([(X, Y)]))
    gradient, center = step(x, y)

    def loss(w):
        h = jnp.asarray(X) @ w
        return (((h - h.mean(0)) - Y) ** 2).sum(-1).mean()

    np.testing.assert_allclose(gradient, jax.grad(loss)(W), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(center, (X @ W).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 2), (2, 4)])
def test_a_gradient_of_what_the_replica_function_closes_over(devices, replicas):
    strategy = strategy_of(devices, replicas)
    with strategy.scope():
        w = mr.Variable(W)

    @mr.function
    def step(x, y):
        with mr.GradientTape() as tape:
            doubled = w * 2.0
            losses = strategy.run(lambda x, y: mr.losses.average_loss(((x @ doubled - y) ** 2).sum(-1)), args=(x, y))
            loss = strategy.reduce("SUM", losses, axis=None)
        return tape.gradient(loss, w)

    ((x, y),) = list(strategy.experimental_distribute_dataset([(X, Y)]))
    plain = jax.grad(lambda w: ((X @ (w * 2.0) - Y) ** 2).sum(-1).mean())(W)
    np.testing.assert_allclose(step(x, y), plain, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_small_and_large_arrays_have_the_same_bits_on_devices_that_do_not_divide_the_replicas():
    small, large = jnp.asarray(W), np.random.default_rng(1).normal(size=(200, 200)).astype(np.float32) / 200
    found = {}
    for devices in (1, 3, 5):
        strategy = strategy_of(devices, 8)
        with strategy.scope():
            w, wide, half = mr.Variable(small), mr.Variable(large), mr.Variable(jnp.ones(3, jnp.float16))

        def replica(x, y, w=w, wide=wide, half=half):
            context = mr.get_replica_context()
            with mr.GradientTape() as tape:
                scale = 1 + (wide.read_value()[: W.shape[0], : W.shape[1]] * w).sum() + (wide**2).mean()
                loss = mr.losses.average_loss(((x @ w * scale * half.astype(jnp.float32)[0] - y) ** 2).sum(-1))
            gradients = context.all_reduce("SUM", tape.gradient(loss, [w, wide, half]))
            for variable, gradient in zip([w, wide, half], gradients, strict=True):
                variable.assign_sub((0.01 * gradient).astype(variable.dtype))
            last, _ = jax.lax.scan(lambda c, _: (context.all_reduce("MEAN", c * 0.7 + x.sum(0)), None), x[0], length=2)
            return last

        step = mr.function(
            lambda x, y, strategy=strategy: strategy.local_results(strategy.run(replica, args=(x, y)))[0]
        )
        for x, y in strategy.experimental_distribute_dataset([(X, Y)] * 2):
            last = step(x, y)
        found[devices] = [np.asarray(one).tobytes() for one in (last, w, wide, half)]
    assert found[3] == found[1]
    assert found[5] == found[1]
