"""The cost of a step per replica, for more replicas than there are devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import ArgumentError
from mirrored.perf_model import TracedStep, detect_step
from perf_model.steps import PARAMETERS_BYTES, WIDTH, program


@pytest.fixture(scope="module", params=[1, 4])
def step(request):
    return TracedStep(detect_step(program(request.param), steps=1))


def test_share_and_replicas_are_found(step):
    assert (step.replicas in (1, 4), step.share) == (True, 8)


@pytest.mark.parametrize("replicas", [8, 4096])
def test_work_of_one_replica_does_not_grow_with_their_number(step, replicas):
    here, there = step.work(step.replicas, 8), step.work(replicas, 8)
    assert there.flops == pytest.approx(here.flops, rel=0.05)
    (exchange,) = there.exchanges
    assert (exchange.kind.startswith("psum"), exchange.group_size) == (True, replicas)
    assert exchange.payload_bytes == PARAMETERS_BYTES
    assert exchange.merged == 2


def test_more_replicas_move_more_bytes_by_what_they_exchange(step):
    alone, there = step.work(1, 8), step.work(64, 8)
    (exchange,) = there.exchanges
    assert exchange.counted_bytes == 2 * PARAMETERS_BYTES
    assert there.moved_bytes - alone.moved_bytes == pytest.approx(exchange.counted_bytes, rel=0.05)


def test_work_follows_the_share(step):
    products = 2 * 2 * WIDTH * WIDTH  # forward, and the weights' gradient, for one example
    grown = step.work(8, 16).flops - step.work(8, 8).flops
    assert grown == pytest.approx(8 * products, rel=0.1)


def test_the_strategy_is_left_as_it_was(step):
    (strategy,) = step._strategies
    before = strategy.device_assignment
    step.work(64, 8)
    step.part(4, 2)
    assert strategy.device_assignment is before


@pytest.mark.long
def test_ordered_sums_climb_a_tree():
    found = TracedStep(detect_step(program(2, deterministic=True), steps=1)).work(64, 8)
    assert [one.group_size for one in found.exchanges] == [2] * 6


def test_a_step_without_replicas_has_work_alone_only():
    v = mr.Variable(jnp.ones(4))

    @mr.function
    def step():
        v.assign(v * 0.5)

    found = TracedStep(detect_step(lambda: [step() for _ in range(5)], steps=1))
    assert found.work(1, 1).flops > 0
    with pytest.raises(ArgumentError, match=r"the step has no strategy.*\n.*rule.*\n.*strategy\.run"):
        found.work(2, 1)


def functional(devices, *, is_constant):
    """A program whose parameters and momentum are arguments and results of its step, with 8 examples per replica."""
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])

    def replica(state, key, x):
        w, momentum = state
        gradient = mr.get_replica_context().all_reduce("SUM", jax.grad(lambda w: jnp.square(x @ w).mean())(w))
        momentum = 0.9 * momentum + gradient + 0 * jax.random.uniform(key)
        return w - 0.1 * momentum, momentum

    @mr.function
    def step(state, key, x):
        return strategy.run(replica, args=(state, key, x), out_specs=P())

    def train():
        w = jnp.ones((WIDTH, WIDTH))
        state, key = (w, jnp.zeros_like(w)), jax.random.PRNGKey(0)
        x = np.ones((8 * devices, WIDTH), np.float32)
        data = [x] * 10
        batches = [*strategy.experimental_distribute_dataset(data)]
        for batch in batches:
            key, used = jax.random.split(key)
            state = step(state, used, batches[0] if is_constant else batch)

    return train


@pytest.mark.first(1)
@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_with_functional_state_has_the_strategy_of_its_run(devices, is_constant):
    step = TracedStep(detect_step(functional(devices, is_constant=is_constant), steps=4))
    assert (step.replicas, step.share) == (devices, 8)
    (exchange,) = step.work(64, 8).exchanges
    assert (exchange.group_size, exchange.payload_bytes) == (64, 4 * WIDTH * WIDTH)
    assert step.work(64, 16).flops > step.work(64, 8).flops
    part = step.part(4, 2)
    assert [operand.shape for operand in part.operands] == [(WIDTH, WIDTH), (WIDTH, WIDTH), (2,), (2, 4, WIDTH)]


def test_an_array_before_the_batch_that_is_equal_in_all_calls_is_no_batch_of_one_replica():
    strategy = mr.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        total = mr.Variable(0.0)

    @mr.function
    def step(scale, x, y):
        return strategy.run(lambda scale, x, y: total.assign_add((x * scale + y).sum()), args=(scale, x, y))

    scale = np.ones(128, np.float32)
    found = detect_step(lambda: [step(scale, jnp.ones((4, 128)), jnp.ones((4, 1))) for _ in range(9)], steps=4)
    assert [operand.shape for operand in TracedStep(found).part(2, 1).operands] == [(128,), (1, 2, 128), (1, 2, 1)]


def test_a_step_of_tensorflow_with_a_condition_on_a_tensor_is_traced_as_converted() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)

    @tf.function
    def train(batch):
        def step(x):
            total = tf.reduce_sum(x)
            if total > 0.0:
                total = 2.0 * total
            return total

        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    def run() -> None:
        for batch in strategy.experimental_distribute_dataset([np.ones((8, 4), np.float32)] * 4):
            train(batch)

    step = TracedStep(detect_step(run, steps=1))
    assert (step.replicas, step.share) == (2, 4)
    assert step.work(64, 4).exchanges[0].group_size == 64


@pytest.mark.parametrize("devices", [1, 4])
def test_sync_on_read_variables_have_a_component_for_each_predicted_replica(devices):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    on_read = mr.VariableSynchronization.ON_READ
    with strategy.scope():
        total = mr.Variable(jnp.zeros(3), synchronization=on_read, aggregation=mr.VariableAggregation.SUM)
        newest = mr.Variable(0.0, synchronization=on_read, aggregation=mr.VariableAggregation.MEAN)

    @mr.function
    def step(x):
        def replica(x):
            total.assign_add(x.sum(0))
            newest.assign(x.mean())

        strategy.run(replica, args=(x,))
        sums = total.read_value()
        total.assign(jnp.zeros(3))
        return sums, newest.values[0]

    def train():
        x = strategy.distribute_values_from_function(lambda context: np.ones((8, 3), np.float32))
        for _ in range(5):
            step(x)

    traced = TracedStep(detect_step(train, steps=1))
    before = total.device_assignment
    exchanges = traced.work(64, 8).exchanges
    assert [(one.kind.startswith("psum"), one.group_size) for one in exchanges] == [(True, 64)] * len(exchanges)
    assert [value.shape for value in traced.part(4, 2).state] == [(1, 3)]
    assert (total.device_assignment is before, total.num_replicas, len(newest.values)) == (True, devices, devices)


def observed(step, size=8, devices=1):
    """The detected step of a program that calls a function of a batch and the strategy."""
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    compiled = mr.function(lambda x: strategy.run(step, args=(x,)))

    def train():
        for batch in strategy.experimental_distribute_dataset([np.ones((size, 3), np.float32)] * 5):
            compiled(batch)

    return detect_step(train, steps=1)


def test_a_step_that_cannot_be_traced_with_another_batch_size_is_refused_with_a_remedy():
    traced = TracedStep(observed(lambda x: x.reshape(4, 6)))
    with pytest.raises(ArgumentError, match=r"mirrored plan: the step raised TypeError when .* 64 replicas with .*"
                       r"\[64, 4, 3\]: cannot reshape(.|\n)*remedy: pass the batch") as raised:  # fmt: skip
        traced.work(64, 4)
    assert isinstance(raised.value.__cause__, TypeError)
    with pytest.raises(ArgumentError, match=r"for 1 replica with arguments of shapes \[1, 2, 3\]"):
        traced.part(2, 1)


def test_a_step_with_batches_of_different_shapes_is_refused_with_a_remedy():
    found = observed(lambda x: x * 2, size=7, devices=2)
    with pytest.raises(ArgumentError, match=r"different shapes: \[4, 3\], \[3, 3\]\n(.|\n)*remedy: .*last_batch='pad'"):
        TracedStep(found)
