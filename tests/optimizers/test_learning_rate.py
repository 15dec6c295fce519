from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError
from mirrored.optimizers import SGD, Optimizer
from optimizers.steps import step_of


@pytest.mark.ways(replicas=(1, 2))
def test_a_change_is_seen_without_a_new_trace(way):
    with way.strategy.scope():
        variable = mr.Variable(0.0)
        optimizer = SGD(0.1)
    step = step_of(way, lambda: optimizer.apply_gradients([(jnp.array(1.0), variable)]))
    step()
    first = float(variable.numpy())
    optimizer.learning_rate = 0.5
    step()
    np.testing.assert_allclose([first, variable.numpy()], [-0.1 * way.num_replicas, -0.6 * way.num_replicas], rtol=1e-6)
    optimizer.learning_rate.assign(0.0)
    step()
    np.testing.assert_allclose(variable.numpy(), -0.6 * way.num_replicas, rtol=1e-6)
    if not way.is_eager:
        assert step.trace_count == 1


def test_it_may_be_changed_before_the_first_step():
    variable = mr.Variable(0.0)
    optimizer = SGD(0.1)
    optimizer.learning_rate = 0.25
    optimizer.apply_gradients([(1.0, variable)])
    assert float(variable.numpy()) == -0.25
    assert float(optimizer.learning_rate.numpy()) == 0.25


def test_a_variable_may_be_shared_by_optimizers():
    rate, one, two = mr.Variable(0.5, trainable=False), mr.Variable(0.0), mr.Variable(0.0)
    first, second = SGD(rate), SGD(rate)
    rate.assign(0.125)
    first.apply_gradients([(1.0, one)])
    second.apply_gradients([(1.0, two)])
    assert (float(one.numpy()), float(two.numpy())) == (-0.125, -0.125)
    assert first.learning_rate is rate


@pytest.mark.ways(replicas=(2,))
def test_a_schedule_is_read_at_each_step(way):
    schedule = optax.piecewise_constant_schedule(1.0, {1: 0.5, 2: 0.5})
    with way.strategy.scope():
        variable = mr.Variable(0.0)
        optimizer = SGD(schedule)
    step = step_of(way, lambda: optimizer.apply_gradients([(jnp.array(0.5), variable)]))
    seen = []
    for _ in range(4):
        step()
        seen.append(-float(variable.numpy()))
    np.testing.assert_allclose(np.diff([0.0, *seen]), [float(schedule(k)) for k in range(4)], rtol=1e-6)
    assert float(optimizer.learning_rate) == float(schedule(4))


def test_any_function_of_the_step_is_a_schedule_and_may_read_variables():
    warmth = mr.Variable(1.0, trainable=False)
    variable = mr.Variable(0.0)
    optimizer = SGD(lambda step: warmth.read_value() * 0.1 * (step + 1))
    optimizer.apply_gradients([(1.0, variable)])
    warmth.assign(2.0)
    optimizer.apply_gradients([(1.0, variable)])
    np.testing.assert_allclose(variable.numpy(), -(0.1 + 0.4), rtol=1e-6)


def test_iterations_can_be_set_to_continue():
    variable = mr.Variable(0.0)
    optimizer = SGD(lambda step: jnp.where(step < 10, 1.0, 0.5))
    optimizer.iterations.assign(10)
    optimizer.apply_gradients([(1.0, variable)])
    assert float(variable.numpy()) == -0.5
    assert int(optimizer.iterations.numpy()) == 11


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), [0.1, 0.2], None, "0.1", object()])
def test_a_rate_is_a_finite_number(value):
    with pytest.raises(ArgumentError, match="finite, nonnegative number"):
        SGD(value)
    optimizer = SGD(0.1)
    with pytest.raises(ArgumentError, match="finite, nonnegative number"):
        optimizer.learning_rate = value


def test_a_schedule_cannot_be_assigned():
    optimizer = SGD(0.1)
    with pytest.raises(ArgumentError, match="the function cosine was assigned"):
        optimizer.learning_rate = cosine
    assert float(optimizer.learning_rate) == np.float32(0.1)


def cosine(step):
    return jnp.cos(step)


def test_a_schedule_cannot_be_overwritten():
    optimizer = SGD(lambda step: 0.1)
    with pytest.raises(ArgumentError, match="was created with a schedule"):
        optimizer.learning_rate = 0.1


def test_a_finished_transform_has_its_own_rate():
    optimizer = Optimizer(optax.sgd(0.1))
    with pytest.raises(ArgumentError, match="contains its learning rate, which cannot be read or set"):
        _ = optimizer.learning_rate
    with pytest.raises(ArgumentError, match="optax.adam needs learning_rate="):
        Optimizer(optax.sgd(0.1), learning_rate=0.1)
    with pytest.raises(ArgumentError, match="optax.adam needs learning_rate="):
        Optimizer(optax.sgd)


def _scheduled(step):
    return 0.25 / (1.0 + step)


@pytest.mark.parametrize(
    "given", [lambda: 0.25, lambda: mr.Variable(0.25), lambda: _scheduled], ids=["number", "variable", "schedule"]
)
@pytest.mark.ways(replicas=(1, 3))
@pytest.mark.first(6)
def test_an_initial_state_that_contains_the_learning_rate(way, given):
    """optax.rprop starts with steps of this size. A compiled first step gave them the size 0: it never trained."""
    value, gradients = np.float32([1.0, 2.0]), np.float32([[1.0, -1.0], [2.0, 1.0], [0.5, 1.0], [1.0, -3.0]])
    with way.strategy.scope():
        variable = mr.Variable(value, name="v")
        optimizer = Optimizer(optax.rprop, learning_rate=given())

    def replica_step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    step = way.compile(lambda gradient: way.strategy.run(replica_step, args=(gradient,)))
    rule = optax.rprop(0.25)
    state = rule.init(value)
    for gradient in gradients:
        step(jnp.asarray(gradient))
        updates, state = rule.update(jnp.asarray(gradient), state)
        value = value + updates
    np.testing.assert_allclose(variable.numpy(), value, rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots(variable)["step_sizes"].numpy(), state[0].step_sizes, rtol=1e-6)


@pytest.mark.parametrize("in_replica", [False, True], ids=["before run", "in replicas"])
@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.first(4)
def test_a_step_may_set_the_rate_before_the_first_update(way, in_replica):
    """The compiled program set it once, while it was traced."""
    with way.strategy.scope():
        variable = mr.Variable(1.0)
        optimizer = SGD(0.1)

    def replica_step():
        if in_replica:
            optimizer.learning_rate = 0.5
        optimizer.apply_gradients([(jnp.float32(1.0), variable)], skip_gradients_aggregation=True)

    def step():
        if not in_replica:
            optimizer.learning_rate = 0.5
        way.strategy.run(replica_step)

    step = way.compile(step)
    for expected in (0.5, 0.0):
        step()
        assert float(variable.numpy()) == expected
        optimizer.learning_rate = 0.01


@pytest.mark.parametrize(
    "factory",
    [optax.inject_hyperparams(optax.sgd), lambda rate: optax.chain(optax.inject_hyperparams(optax.adam)(rate))],
    ids=["given", "inside"],
)
@pytest.mark.parametrize("learning_rate", [0.1, lambda step: 0.1], ids=["number", "schedule"])
def test_a_factory_that_keeps_its_first_rate_is_refused(factory, learning_rate):
    optimizer = Optimizer(factory, learning_rate=learning_rate)
    with pytest.raises(ArgumentError, match="keeps the first learning rate in its state"):
        optimizer.apply_gradients([(1.0, mr.Variable(1.0))])


def test_a_factory_may_inject_others_than_the_rate():
    v = mr.Variable(1.0)
    optimizer = Optimizer(
        lambda rate: optax.chain(optax.inject_hyperparams(optax.trace)(decay=0.0), optax.scale(-rate)),
        learning_rate=0.1,
    )
    optimizer.apply_gradients([(1.0, v)])
    optimizer.learning_rate = 0.5
    optimizer.apply_gradients([(1.0, v)])
    assert float(v.numpy()) == pytest.approx(0.4)
