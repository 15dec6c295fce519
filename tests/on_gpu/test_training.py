"""Tape, run and reduce on one GPU, with up to 8 virtual replicas on it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives.summation import tree_sum
from mirrored.testing import assert_close_by_norm, assert_same_bits
from on_gpu.programs import ON_GPU, REPLICAS, Training, strategy_of

pytestmark = pytest.mark.gpu
both_ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Without TF32, whose rounding is far above the tolerances here."""
    with jax.default_matmul_precision("highest"):
        yield


@both_ways
def test_the_tape_gives_the_gradients_of_jax(compiled):
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    w = mr.Variable(jnp.linspace(-1.0, 1.0, 12).reshape(4, 3))

    def gradient(x):
        with mr.GradientTape() as tape:
            loss = jnp.sum(jax.nn.softmax(jnp.sin(x @ w)) ** 2)
        return tape.gradient(loss, w)

    expected = jax.grad(lambda w: jnp.sum(jax.nn.softmax(jnp.sin(x @ w)) ** 2))(w.read_value())
    assert_close_by_norm(mr.function(gradient)(x) if compiled else gradient(x), expected, 1e-5)


@both_ways
@pytest.mark.parametrize("replicas", [1, REPLICAS])
def test_run_and_reduce(replicas, compiled):
    strategy = strategy_of(replicas)

    def step():
        def replica():
            context = mr.get_replica_context()
            return context.all_reduce("sum", jnp.float32(context.replica_id_in_sync_group + 1))

        sums = strategy.run(replica)
        return strategy.reduce("MEAN", sums, axis=None), sums

    mean, sums = mr.function(step)() if compiled else step()
    expected = replicas * (replicas + 1) / 2
    assert float(mean) == expected
    assert [float(one) for one in strategy.experimental_local_results(sums)] == [expected] * replicas


@both_ways
def test_virtual_replicas_train_like_one(compiled):
    one, many = Training(1), Training(REPLICAS, compiled=compiled)
    steps = 10 if compiled else 2
    np.testing.assert_allclose(many.train(steps), one.train(steps), rtol=1e-4)
    for mine, theirs in zip(many.state(), one.state(), strict=True):
        assert_close_by_norm(mine, theirs, 1e-3)


def test_a_training_goes_down():
    losses = Training(REPLICAS).train(30)
    assert losses[-1] < 0.5 * losses[0]


def test_a_deterministic_training_repeats_itself_to_the_bit():
    states = []
    for _ in range(2):
        training = Training(REPLICAS, deterministic=True)
        training.train(5)
        states.append(training.state())
    assert_same_bits(*states)


def test_fused_attention_has_the_same_gradients_for_every_number_of_replicas():
    """A GPU's attention is cuDNN's; elsewhere it is XLA's. Each number has the per-replica batches of four replicas."""
    chosen = "cudnn" if ON_GPU else "xla"
    q = np.random.default_rng(2).standard_normal((4, 64, 2, 64)).astype(np.float32) / 4

    def gradients(replicas):
        strategy = strategy_of(replicas, deterministic=True)
        with strategy.scope():
            scale = mr.Variable(np.ones(64, np.float32))

        def replica(q):
            with mr.GradientTape() as tape:
                x = (q * scale).astype(jnp.bfloat16)
                out = jax.nn.dot_product_attention(x, x, x, is_causal=True, implementation=chosen)
                loss = jnp.sum(out.astype(jnp.float32) ** 2)
            return mr.get_replica_context().all_reduce("sum", tape.gradient(loss, scale))

        @mr.function
        def step(q):
            return strategy.run(replica, args=(q,))

        totals = []
        for first in range(0, 4, replicas):
            shares = strategy.distribute_values_from_function(
                lambda c, first=first: q[first + c.replica_id_in_sync_group :][:1]
            )
            totals.append(np.asarray(strategy.experimental_local_results(step(shares))[0]))
        return totals

    assert_same_bits(gradients(4), [tree_sum(gradients(2))])
