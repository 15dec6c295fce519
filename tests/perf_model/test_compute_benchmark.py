"""Microbenchmarks: one replica's program on several devices at once, and all-reduces between them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.perf_model import (
    AllReduceBenchmark,
    Exchange,
    TracedStep,
    benchmark_allreduce,
    benchmark_compute,
    detect_step,
)
from perf_model.steps import WIDTH, program


@pytest.fixture(scope="module", params=[1, 4])
def step(request):
    return TracedStep(detect_step(program(request.param), steps=1))


def test_a_share_is_run_on_several_devices_and_the_variables_stay(step):
    before = [variable.numpy() for variable in step.part(8, 1).pure.reads]
    found = benchmark_compute(step, 4, 2)
    assert 0 < found.dispatch_seconds < found.seconds
    assert found.compute_seconds == pytest.approx(found.seconds - found.dispatch_seconds)
    for variable, old in zip(step.part(8, 1).pure.reads, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)


def test_its_program_exchanges_nothing_and_steps_from_real_values(step):
    part = step.part(3, 2)
    assert [one.shape for one, spread in zip(part.operands, part.is_spread, strict=True) if spread] == [(2, 3, WIDTH)]
    alone = [one[:1] if spread else one for one, spread in zip(part.operands, part.is_spread, strict=True)]
    traced = jax.jit(part.pure.call).trace(list(part.state), alone)
    assert "psum" not in str(traced.jaxpr)
    w, *_ = traced.lower().compile()(list(part.state), alone)
    assert np.isfinite(w).all()
    assert not np.array_equal(w, part.state[0])


@pytest.mark.long
def test_per_replica_state_and_steps_without_a_strategy_are_rehearsed():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        seen = mr.Variable(np.zeros(3, np.float32), synchronization="on_read", aggregation="sum")

    @mr.function
    def counts(x):
        strategy.run(lambda x: seen.assign_add(x.sum(0)), args=(x,))

    @mr.function
    def doubles(x):
        return 2 * x

    x = strategy.distribute_values_from_function(lambda c: np.ones((4, 3), np.float32))
    for function, value in ((counts, x), (doubles, np.ones((4, 3), np.float32))):
        step = TracedStep(detect_step(lambda f=function, v=value: [f(v) for _ in range(5)], steps=1))
        assert step.share == 4
        assert benchmark_compute(step, 2, 2).seconds > 0


@pytest.mark.long
def test_sums_are_measured_and_lie_on_a_line():
    found = benchmark_allreduce(jax.local_devices()[:2], 2**20, 3)
    assert found.devices == 2
    assert 2**20 <= found.large_bytes < 2**20 + 16
    assert 0 < found.tiny_seconds < 1
    sums = AllReduceBenchmark(4, 1e-3, 3e-3, 1000)
    assert sums.seconds(Exchange("psum", 4, 1000)) == pytest.approx(3e-3)
    assert sums.seconds(Exchange("psum", 4, 2000, times=2)) == pytest.approx(10e-3)
    assert sums.seconds(Exchange("psum", 1, 2000)) == 0.0


def test_the_network_of_sums_takes_as_long_as_they_do():
    sums = AllReduceBenchmark(4, 1e-3, 101e-3, 10_000_000)
    assert Exchange("psum", 4, 4).seconds(sums.network) == pytest.approx(1e-3, rel=0.01)
    assert Exchange("psum", 4, 10_000_000).seconds(sums.network) == pytest.approx(101e-3, rel=0.02)


@pytest.mark.parametrize("keys_per_replica", ["one", "one per example"])
def test_a_step_that_takes_random_keys_per_replica_is_measured(keys_per_replica: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    shape = () if keys_per_replica == "one" else (2,)
    keys = strategy.distribute_values_from_function(
        lambda context: jax.random.split(jax.random.key(context.replica_id_in_sync_group), shape)
    )
    x = strategy.distribute_values_from_function(lambda _: np.ones((2, 3), np.float32))

    def dropped(x: jax.Array, key: jax.Array) -> jax.Array:
        draw = lambda key: jax.random.bernoulli(key, 0.5, (3,))  # noqa: E731
        return x * (jax.vmap(draw)(key) if shape else draw(key))

    drops = mr.function(lambda x, keys: strategy.run(dropped, args=(x, keys)))
    step = TracedStep(detect_step(lambda: [drops(x, keys) for _ in range(5)], steps=1))
    part = step.part(5, 3)
    assert [one.shape for one in part.operands] == [(3, 5, 3), (3, 5) if shape else (3,)]
    assert benchmark_compute(step, 3, 2).seconds > 0
