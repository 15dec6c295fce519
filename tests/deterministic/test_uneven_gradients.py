"""Gradients of each order through collectives are those of one device, where devices have unequal numbers of replicas.

A device with fewer replicas computes an empty slot, whose cotangents must reach no replica.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import Median

W = np.asarray([0.5, -1.0], np.float32)
LAYOUTS = [(3, 4), (2, 3), (2, 5), (3, 5), (4, 7)]


def merged(function: Callable[..., Any], *args: Any) -> Any:
    return mr.get_replica_context().merge_call(function, args)


def reduced(op: Any, value: Any) -> Any:
    return mr.get_replica_context().all_reduce(op, value)


def gathered(value: Any) -> Any:
    return mr.get_replica_context().all_gather(value, 0)


def rotated(values: Any) -> mr.PerReplica:
    return mr.PerReplica([*values[1:], values[0]])


def weighted(values: Any) -> Any:
    return sum((k + 1.0) * value for k, value in enumerate(values))


def cubes(stacked: Any) -> Any:
    return jnp.tensordot(1.0 + jnp.arange(len(stacked), dtype=stacked.dtype), stacked**3, 1)


def several(strategy: Any, a: Any, b: Any) -> Any:
    own = jax.tree.map(jnp.multiply, a, b)
    return {"sum": strategy.reduce("SUM", a, axis=None), "own": own, "last": b.values[-1], "rotated": rotated(b.values)}


def run_that_gathers(strategy: Any, a: Any) -> Any:
    total = weighted(a.values)
    return strategy.run(lambda own: gathered(own * jnp.sin(total) + total), args=(a,))


def run_that_is_reduced(strategy: Any, a: Any) -> Any:
    total = weighted(a.values)
    return strategy.reduce("SUM", strategy.run(lambda own: own * total + total, args=(a,)), axis=None)


def run_with_argument(strategy: Any, a: Any) -> Any:
    return strategy.run(lambda own, total: own * jnp.sin(total) + total, args=(a, weighted(a.values)))


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "gather": gathered,
    "median": lambda x: reduced(Median(), x),
    "custom reduction": lambda x: reduced(cubes, [x, x * x]),
    "sum": lambda x: reduced("SUM", x),
    "equal values": lambda x: merged(lambda strategy, a: jax.tree.map(lambda one: one, a), x),
    "list of values": lambda x: merged(lambda strategy, a: mr.PerReplica(list(a.values)), x),
    "rotated values": lambda x: merged(lambda strategy, a: rotated(a.values), x),
    "last value": lambda x: merged(lambda strategy, a: mr.PerReplica([a.values[-1]] * len(a.values)), x),
    "several results": lambda x: merged(several, x, x * x),
    "two merges": lambda x: merged(lambda s, a: rotated(a.values), merged(lambda s, a: rotated(a.values), x * x)) + x,
    "run that gathers": lambda x: merged(run_that_gathers, x),
    "run that is reduced": lambda x: merged(run_that_is_reduced, x),
    "run with an argument": lambda x: merged(run_with_argument, x),
}


def loss_of(collective: Callable[[Any], Any], x: Any) -> Any:
    results = jax.tree.leaves(collective(jnp.sin(x)))
    share = 1.0 + jnp.asarray(mr.get_replica_context().replica_id_in_sync_group)
    return share * sum(jnp.sum(jnp.sin(result) * result) for result in results)


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def nested(function: Callable[[Any], Any], x: Any, order: int) -> Any:
    if order == 1:
        return gradient(function, x)
    return gradient(lambda own: jnp.sum(nested(function, own, order - 1) ** 2), x)


def inside(order: int) -> Callable[..., Any]:
    """Nested tapes in the replica function."""

    def gradients(strategy: Any, loss: Any, xs: Any, w: Any) -> Any:
        return strategy.run(lambda x: nested(lambda own: loss(own * w), x, order), args=(xs,))

    return gradients


def total(strategy: Any, values: Any) -> Any:
    return strategy.reduce("SUM", values, axis=None)


def around(order: int) -> Callable[..., Any]:
    """Nested tapes around the run."""

    def gradients(strategy: Any, loss: Any, xs: Any, w: Any) -> Any:
        value = lambda w: total(strategy, strategy.run(lambda x, w: loss(x * w), args=(xs, w)))  # noqa: E731
        return nested(value, w.read_value(), order)

    return gradients


def of_variable(strategy: Any, loss: Any, xs: Any, w: Any) -> Any:
    with mr.GradientTape() as outer:
        with mr.GradientTape() as tape:
            value = total(strategy, strategy.run(lambda x: loss(x * w), args=(xs,)))
        found = tape.gradient(value, w)
        square = jnp.sum(found**2)
    return found, outer.gradient(square, w)


def inside_and_around(strategy: Any, loss: Any, xs: Any, w: Any) -> Any:
    def replica(x: Any) -> Any:
        return jnp.sum(gradient(lambda own: loss(own * w), x) ** 2)

    with mr.GradientTape() as tape:
        value = total(strategy, strategy.run(replica, args=(xs,)))
    return tape.gradient(value, w)


def jacobian_of_gradient(strategy: Any, loss: Any, xs: Any, w: Any) -> Any:
    def replica(x: Any) -> Any:
        with mr.GradientTape() as outer:
            with mr.GradientTape() as tape:
                value = loss(x * w)
            found = tape.gradient(value, w)
        return outer.jacobian(found, w)

    return strategy.run(replica, args=(xs,))


def by_jax_around(strategy: Any, loss: Any, xs: Any, w: Any) -> Any:
    def value(w: Any) -> Any:
        return total(strategy, strategy.run(lambda x: jnp.sum(gradient(lambda own: loss(own * w), x) ** 2), args=(xs,)))

    return jax.grad(value)(w.read_value())


GRADIENTS: dict[str, Callable[..., Any]] = {
    "inside": inside(1),
    "inside twice": inside(2),
    "inside three times": inside(3),
    "around": around(1),
    "around twice": around(2),
    "of a variable": of_variable,
    "inside and around": inside_and_around,
    "jacobian": jacobian_of_gradient,
    "jax.grad around": by_jax_around,
}


@functools.cache
def result(of: str, collective: str, devices: int, replicas: int, deterministic: bool) -> list[np.ndarray]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    values = np.random.default_rng(0).normal(size=(replicas, 2)).astype(np.float32) * 0.5
    xs = strategy.experimental_distribute_values_from_function(lambda context: values[context.replica_id_in_sync_group])
    with strategy.scope():
        w = mr.Variable(W)
    loss = functools.partial(loss_of, COLLECTIVES[collective])
    results = mr.function(lambda xs: GRADIENTS[of](strategy, loss, xs, w))(xs)
    leaves = jax.tree.leaves(results, is_leaf=lambda one: isinstance(one, mr.PerReplica))
    return [np.stack(strategy.experimental_local_results(leaf)) for leaf in leaves]


@pytest.mark.sampled(40)
@pytest.mark.first(3)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[1]}on{layout[0]}")
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("of", GRADIENTS)
def test_a_gradient_on_unequal_devices_is_that_of_one_device(of: str, collective: str, layout: tuple[int, int]) -> None:
    devices, replicas = layout
    wanted = result(of, collective, 1, replicas, False)
    for one, other in zip(result(of, collective, devices, replicas, True), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-4, atol=3e-4 * np.abs(other).max())


@pytest.mark.parametrize("collective", ["run that gathers", "run that is reduced"])
def test_a_run_inside_of_a_merge_whose_algorithm_is_not_deterministic(collective: str) -> None:
    wanted = result("inside", collective, 1, 4, False)
    for one, other in zip(result("inside", collective, 3, 4, False), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-4, atol=3e-4 * np.abs(other).max())


@pytest.mark.first(1)
@pytest.mark.parametrize("collective", ["rotated values", "gather", "two merges", "equal values"])
@pytest.mark.parametrize("of", ["inside", "inside twice", "of a variable"])
def test_a_gradient_has_the_same_bits_on_any_number_of_devices(of: str, collective: str) -> None:
    wanted = result(of, collective, 1, 4, True)
    for devices in (2, 3, 4):
        for one, other in zip(result(of, collective, devices, 4, True), wanted, strict=True):
            assert one.tobytes() == other.tobytes(), devices


INDEPENDENT: dict[str, Callable[[Any], Any]] = {
    "gather": lambda x: jax.lax.all_gather(x, "replica", tiled=True),
    "custom reduction": lambda x: [cubes(jax.lax.all_gather(one, "replica")) for one in (x, x * x)],
    "rotated values": lambda x: jax.lax.ppermute(x, "replica", [(0, 3), (1, 0), (2, 1), (3, 2)]),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("collective", INDEPENDENT)
def test_second_derivatives_are_those_of_jax_with_an_axis_of_replicas(collective: str) -> None:
    def loss(own: Any) -> Any:
        results = jax.tree.leaves(INDEPENDENT[collective](jnp.sin(own * W)))
        share = 1.0 + jax.lax.axis_index("replica")
        return share * sum(jnp.sum(jnp.sin(one) * one) for one in results)

    def second(x: Any) -> Any:
        return jax.grad(lambda own: jnp.sum(jax.grad(loss)(own) ** 2))(x)

    values = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32) * 0.5
    wanted = jax.vmap(second, axis_name="replica")(values)
    [found] = result("inside twice", collective, 3, 4, True)
    np.testing.assert_allclose(found, wanted, rtol=3e-4, atol=3e-4 * np.abs(wanted).max())
