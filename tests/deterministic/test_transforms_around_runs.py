"""Gradients of JAX's own transforms around a run have equal bits on every number of devices."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import mirrored as mr

REPLICAS = 6
DEVICES = (2, 3, 4, 6)  # three and two replicas on each, two or one, and one
_random = np.random.default_rng(0)
ROWS = _random.normal(size=(2 * REPLICAS, 5)).astype(np.float32)
WEIGHT = jnp.asarray(_random.normal(size=5).astype(np.float32))
UPSTREAM = jnp.asarray(_random.normal(size=5).astype(np.float32))


def context():
    return mr.get_replica_context()


def strategy_on(devices, *, deterministic=True):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, deterministic=deterministic)
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: ROWS[2 * context.replica_id_in_sync_group :][:2]
    )
    return strategy, batch


def wave(x, w):
    return jnp.sin(x * w).mean(0)


def summed(body, source):
    """Returns a function of a strategy and a batch that returns the sum of a run as a function of the weight."""

    def of(strategy, batch):
        def total(w):
            if source == "argument":
                return strategy.reduce("SUM", strategy.run(body, args=(batch, w)), axis=None)
            return strategy.reduce("SUM", strategy.run(lambda x: body(x, w), args=(batch,)), axis=None)

        return total

    return of


def loss_of(function):
    return lambda w: (function(w) * UPSTREAM).sum()


def gradient(function, w):
    return jax.grad(loss_of(function))(w)


def gradients(of, differentiated, devices):
    """Returns the gradient on one device, and those on other numbers of devices."""

    def on(number):
        function = of(*strategy_on(number))
        return np.asarray(mr.function(lambda w: differentiated(function, w))(WEIGHT))

    return on(1), [on(number) for number in devices]


TRANSFORMS = {
    "grad": gradient,
    "vjp": lambda function, w: jax.vjp(function, w)[1](UPSTREAM)[0],
    "of scan": lambda function, w: gradient(
        lambda w: jax.lax.scan(lambda carry, _: (carry + 0.1 * function(carry), None), w, None, length=3)[0], w
    ),
    "of jit": lambda function, w: gradient(jax.jit(function), w),
    "of checkpoint": lambda function, w: gradient(jax.checkpoint(function), w),
    "grad of grad": lambda function, w: gradient(lambda w: gradient(function, w), w),
    "jacrev": lambda function, w: jax.jacrev(function)(w),
}


@pytest.mark.sampled(3)
@pytest.mark.first(1)
@pytest.mark.parametrize("source", ["argument", "closed over"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_bits_do_not_depend_on_the_devices(transform, source):
    expected, others = gradients(summed(wave, source), TRANSFORMS[transform], (3, 4))
    for other in others:
        assert other.tobytes() == expected.tobytes()


def many_uses(x, w):
    return ((jnp.tanh(x * w) * w + w.sum()) @ jnp.outer(w, w)).mean(0)


def inner_gradient(x, w):
    return jax.grad(lambda w: (jnp.sin(x * w) * w).sum())(w) * w


def branch(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda: x[0] * w, lambda: jnp.sin(w))


def all_reduced(x, w):
    return jnp.sin(context().all_reduce("SUM", (x * w).sum(0)) * w) + x[0] * w


def all_reduced_alone(x, w):
    reduced = context().all_reduce("MEAN", {"own": w, "product": x[0] * w})
    return reduced["own"] * reduced["product"] * x[1]


def tape_of_all_reduce(x, w):
    with mr.GradientTape() as tape:
        tape.watch(w)
        loss = (jnp.sin(context().all_reduce("SUM", w) * x[0])).sum()
    return tape.gradient(loss, w) * w


def gathered(x, w):
    return (context().all_gather(w[None], axis=0) * x[:1]).sum(0) + context().all_gather((x * w)[:1], axis=0).sum(0)


def merged(x, w):
    total = context().merge_call(
        lambda strategy, value: strategy.reduce("SUM", value, axis=None) * jnp.sin(w), args=((x * w).sum(0),)
    )
    return total * w


def read_in_merge_alone(x, w):
    total = context().merge_call(lambda strategy, value: strategy.reduce("SUM", value, axis=None) * w, args=(x[0],))
    return total * x[1]


def loop_of_collectives(x, w):
    mean = lambda carry, _: (context().all_reduce("MEAN", jnp.sin(carry * x[0] * w)), None)  # noqa: E731
    return jax.lax.scan(mean, w * x[1], None, length=3)[0]


BODIES = [
    all_reduced,
    many_uses,
    inner_gradient,
    branch,
    all_reduced_alone,
    tape_of_all_reduce,
    gathered,
    merged,
    read_in_merge_alone,
    loop_of_collectives,
]


@pytest.mark.sampled(3)
@pytest.mark.first(1)
@pytest.mark.parametrize("source", ["closed over", "argument"])
@pytest.mark.parametrize("body", BODIES)
def test_bits_do_not_depend_on_the_devices_if_the_replicas_communicate(body, source):
    expected, others = gradients(summed(body, source), gradient, DEVICES)
    for other in others:
        assert other.tobytes() == expected.tobytes()


def two_runs(strategy, batch):
    def total(w):
        first = strategy.run(lambda x: (jnp.sin(x * w), (x * w).sum()), args=(batch,))
        second = strategy.run(lambda x, own: (x * own[0]).sum(0) * own[1] * w, args=(batch, first))
        return strategy.reduce("SUM", second, axis=None)

    return total


def declared_result(strategy, batch):
    def body(x, w):
        return context().all_reduce("MEAN", (x * w).sum(0) ** 2)

    return lambda w: jnp.sin(strategy.run(body, args=(batch, w), out_specs=PartitionSpec())) * w


def merged_result(strategy, batch):
    def body(x, w):
        return context().merge_call(lambda s, value: s.reduce("MEAN", value, axis=None), args=((x * w).sum(0),))

    return lambda w: strategy.run(body, args=(batch, w)) * w


@pytest.mark.first(1)
@pytest.mark.parametrize("of", [two_runs, declared_result, merged_result])
def test_bits_do_not_depend_on_the_devices_if_results_are_used_further(of):
    expected, others = gradients(of, gradient, (3, 4))
    for other in others:
        assert other.tobytes() == expected.tobytes()


def test_hessians_of_a_run_without_a_reduction_have_equal_bits():
    def of(strategy, batch):
        return lambda w: sum(strategy.experimental_local_results(strategy.run(wave, args=(batch, w))))

    expected, others = gradients(of, lambda function, w: jax.hessian(loss_of(function))(w), (3, 4))
    for other in others:
        assert other.tobytes() == expected.tobytes()


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 traces it as a part of another program")
def test_a_transform_of_a_function_whose_run_closes_over_the_argument():
    of = summed(wave, "closed over")
    expected, other = (np.asarray(gradient(mr.function(of(*strategy_on(devices))), WEIGHT)) for devices in (1, 3))
    assert other.tobytes() == expected.tobytes()


@pytest.mark.first(2)
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("devices", [3, 4])
def test_the_gradient_is_that_of_plain_jax(devices, deterministic):
    """On four devices, two slots have no replica, and add nothing to the gradient."""
    blocks = ROWS.reshape(REPLICAS, 2, 5)

    def plain(w):
        total = (blocks * w).sum((0, 1))
        return sum(jnp.sin(total * w) + x[0] * w for x in blocks)

    strategy, batch = strategy_on(devices, deterministic=deterministic)
    for source, compiled in itertools.product(("argument", "closed over"), (mr.function, jax.jit)):
        found = compiled(lambda w: gradient(summed(all_reduced, source)(strategy, batch), w))(WEIGHT)  # noqa: B023
        np.testing.assert_allclose(found, gradient(plain, WEIGHT), rtol=1e-4, atol=1e-4)
