"""Reductions over replicas under JAX transforms: accepted or refused alike on every layout, with equal results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import MergeError, TapeError, TransformError

REPLICAS = 4
LAYOUTS = pytest.mark.parametrize("devices", [1, 2, 4], ids=["1x4", "2x2", "4x1"])


def total(x: Any) -> Any:
    return mr.get_replica_context().all_reduce("SUM", x)


def mean(x: Any) -> Any:
    return mr.get_replica_context().all_reduce("MEAN", x)


def in_jit(x: Any) -> Any:
    return jax.jit(lambda x: total(x * x) + x)(x)


def in_nested_jit(x: Any) -> Any:
    return jax.jit(lambda x: jax.jit(total)(x * 2) * jax.jit(mean)(x))(x)


def in_scan(x: Any) -> Any:
    return lax.scan(lambda c, y: (c + mean(c * y), c), x, jnp.arange(3.0))


def in_fori_loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, c: c + mean(c) * i, x)


def in_while_loop(x: Any) -> Any:
    return lax.while_loop(lambda c: jnp.sum(c[1]) < 200.0, lambda c: (c[0] + 1.0, total(c[0] + c[1])), (x, total(x)))


def in_cond(x: Any) -> Any:
    return lax.cond(jnp.sum(total(x)) > 0, lambda x: total(x), lambda x: -x, x)


def in_switch(x: Any) -> Any:
    return [lax.switch(i, [lambda x: x, lambda x: total(x), lambda x: mean(x) * x], x) for i in range(3)]


def in_a_branch_of_a_loop(x: Any) -> Any:
    def turn(i: Any, c: Any) -> Any:
        return lax.cond(i % 2 == 0, lambda c: c + mean(c), lambda c: c * 2, c)

    return lax.fori_loop(0, 3, turn, x)


def in_vmap(x: Any) -> Any:
    return jax.vmap(lambda y: total(y * y))(x), jax.vmap(mean, in_axes=None, axis_size=2)(x)


def in_grad(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(mean(x * x) * x))(x)


def in_hessian(x: Any) -> Any:
    return jax.hessian(lambda x: jnp.sum(total(x**3)))(x)


def in_grad_of_scan(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(lax.scan(lambda c, y: (c * mean(c) + y, None), x, jnp.arange(3.0))[0]))(x)


def in_checkpoint(x: Any) -> Any:
    return jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(total(x)) * x)))(x)


def gathered_in_scan(x: Any) -> Any:
    def turn(c: Any, y: Any) -> Any:
        return c + jnp.sum(mr.get_replica_context().all_gather(c, axis=0)) * y, None

    return lax.scan(turn, x, jnp.arange(3.0))[0]


def gradient_of_gather(x: Any) -> Any:
    def loss(x: Any) -> Any:
        return jnp.sum(mr.get_replica_context().all_gather(x, axis=0) ** 2 * jnp.sum(x))

    return jax.jit(jax.grad(loss))(x)


def taped_scan(x: Any) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = jnp.sum(in_scan(x)[0] ** 2)
    return tape.gradient(y, x)


def taped_jit(x: Any) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = jnp.sum(in_jit(x) * total(x))
    return tape.gradient(y, x)


def average_loss_in_grad(x: Any) -> Any:
    return jax.grad(lambda x: mr.losses.average_loss(x**2, sample_weight=jnp.abs(x)))(x)


def median_in_jit(x: Any) -> Any:
    return jax.jit(functools.partial(mr.get_replica_context().all_reduce, mr.collectives.Median()))(x)


def half_precision_in_jit(x: Any) -> Any:
    return jax.jit(lambda x: mean(x.astype(jnp.float16) * 8000))(x)


def _taped(x: Any) -> Any:
    """A gradient whose loss contains collectives of each kind; the callers put the tape into a transform."""
    with mr.GradientTape() as tape:
        tape.watch(x)
        gathered = jnp.sum(mr.get_replica_context().all_gather(x, axis=0) ** 2)
        y = jnp.sum(total(x * x) * jnp.sin(x)) + gathered * mr.losses.average_loss(x**2, sample_weight=jnp.abs(x))
    return tape.gradient(y, x)


def tape_in_scan(x: Any) -> Any:
    return lax.scan(lambda c, y: (c + _taped(c * 0.1 + y), None), x, jnp.arange(3.0))[0]


def tape_in_jit(x: Any) -> Any:
    return jax.jit(_taped)(x)


def tape_in_cond(x: Any) -> Any:
    return lax.cond(jnp.sum(total(x)) > 0, _taped, lambda x: -x, x)


def tape_in_vmap(x: Any) -> Any:
    return jax.vmap(_taped)(jnp.stack([x, 2 * x]))


def tape_in_checkpoint(x: Any) -> Any:
    return jax.checkpoint(_taped)(x)


PROGRAMS = {
    program.__name__: program
    for program in (
        *(in_jit, in_nested_jit, in_scan, in_fori_loop, in_while_loop, in_cond, in_switch, in_a_branch_of_a_loop),
        *(in_vmap, in_grad, in_hessian, in_grad_of_scan, in_checkpoint, gathered_in_scan, gradient_of_gather),
        *(taped_scan, taped_jit, average_loss_in_grad, median_in_jit, half_precision_in_jit),
        *(tape_in_scan, tape_in_jit, tape_in_cond, tape_in_vmap, tape_in_checkpoint),
    )
}


def run(program: Callable[[Any], Any], devices: int, **options: Any) -> list[np.ndarray]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, **options)
    values = np.random.default_rng(0).normal(size=(REPLICAS, 3)).astype("float32") + 2
    x = strategy.distribute_values_from_function(lambda c: jnp.asarray(values[c.replica_id_in_sync_group]))
    result = mr.function(lambda x: strategy.run(program, args=(x,)))(x)
    leaves = jax.tree.leaves(result, is_leaf=lambda leaf: isinstance(leaf, mr.PerReplica))
    return [np.asarray(part) for leaf in leaves for part in strategy.local_results(leaf)]


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
@pytest.mark.first(1)
def test_every_layout_gives_the_results_of_one_replica_per_device(name, deterministic):
    expected = run(PROGRAMS[name], REPLICAS, deterministic=deterministic)
    for devices in (1, 2):
        found = run(PROGRAMS[name], devices, deterministic=deterministic)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@LAYOUTS
@pytest.mark.first(1)
def test_variables_are_assigned_what_a_loop_has_reduced(devices):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, deterministic=True)
    with strategy.scope():
        w = mr.Variable(jnp.full((3,), 0.5))
    transform = optax.adam(0.1)

    def local_steps(x: Any) -> None:
        def turn(carry: Any, _: Any) -> Any:
            w, state = carry
            gradient = mean(jax.grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(w))
            updates, state = transform.update(gradient, state, w)
            return (optax.apply_updates(w, updates), state), None

        value = w.read_value()
        w.assign(lax.scan(turn, (value, transform.init(value)), length=4)[0][0])

    x = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    parts = strategy.distribute_values_from_function(lambda c: jnp.asarray(np.split(x, 4)[c.replica_id_in_sync_group]))
    mr.function(lambda x: strategy.run(local_steps, args=(x,)))(parts)

    expected, state = jnp.full((3,), 0.5), transform.init(jnp.full((3,), 0.5))
    for _ in range(4):
        gradient = jax.grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(expected)
        updates, state = transform.update(gradient, state, expected)
        expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)


def while_differing(x: Any) -> Any:
    return lax.while_loop(lambda c: jnp.sum(c) < 100.0, lambda c: c + mean(c), x)


def cond_differing(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 6, lambda x: total(x), lambda x: x, x)


def cond_on_the_replica(x: Any) -> Any:
    return lax.cond(mr.get_replica_context().replica_id_in_sync_group > 0, total, lambda x: x, x)


def merge_call_in_jit(x: Any) -> Any:
    return jax.jit(lambda x: mr.get_replica_context().merge_call(lambda _, y: y, args=(x,)))(x)


def update_in_jit(x: Any) -> Any:
    w = mr.Variable(jnp.zeros(3))
    jax.jit(lambda x: mr.optimizers.SGD(0.1).apply_gradients([(x, w)]))(x)
    return x


@LAYOUTS
@pytest.mark.parametrize("program", [while_differing, cond_differing, cond_on_the_replica, merge_call_in_jit])
def test_every_layout_refuses_what_would_deadlock_or_has_no_form(program, devices):
    with pytest.raises(MergeError):
        run(program, devices)


@LAYOUTS
@pytest.mark.first(2)
def test_eager_runs_meet_under_grad_and_vmap_and_refuse_loops(devices):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS)
    x = strategy.distribute_values_from_function(lambda c: jnp.arange(3.0) + c.replica_id_in_sync_group)
    gradient = strategy.run(lambda x: jax.grad(lambda x: jnp.sum(total(x * x)))(x), args=(x,))
    np.testing.assert_allclose(strategy.local_results(gradient)[1], 8 * (np.arange(3.0) + 1))
    summed = strategy.run(lambda x: jax.vmap(total)(x), args=(x,))
    np.testing.assert_allclose(strategy.local_results(summed)[0], 4 * np.arange(3.0) + 6)
    with pytest.raises(MergeError, match="mirrored.function"):
        strategy.run(in_scan, args=(x,))
    with pytest.raises(MergeError, match="mirrored.function"):
        strategy.run(in_jit, args=(x,))
    with jax.disable_jit():
        assert len(strategy.local_results(strategy.run(in_jit, args=(x,)))) == REPLICAS


def average_loss_of_a_tape_in_scan(x: Any) -> Any:
    def turn(w: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(w)
            loss = mr.losses.average_loss((w - y) ** 2)
        return w - 0.1 * tape.gradient(loss, w), loss

    return lax.scan(turn, x, jnp.arange(3.0))


def average_loss_in_jit(x: Any) -> Any:
    return jax.jit(mr.losses.average_loss)(x)


def gathered_in_jit(x: Any) -> Any:
    return jax.jit(lambda x: mr.get_replica_context().all_gather(x, axis=0))(x)


CALLED = {
    average_loss_of_a_tape_in_scan: "average_loss",
    average_loss_in_jit: "average_loss",
    in_scan: r"ReplicaContext\.all_reduce",
    gathered_in_jit: r"ReplicaContext\.all_gather",
}


@pytest.mark.parametrize("program", CALLED)
@pytest.mark.parametrize("devices", [1, 2])
def test_an_eager_run_names_what_the_user_called_in_a_loop(program, devices):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2)
    with pytest.raises(MergeError, match=rf"(?s)^{CALLED[program]}: .*mirrored\.function"):
        strategy.run(program, args=(jnp.arange(3.0),))


def test_replicas_that_differ_are_told_what_they_called():
    def replica(x: Any) -> Any:
        return mr.losses.average_loss(x) if mr.get_replica_context().replica_id_in_sync_group else total(x)

    with pytest.raises(MergeError, match=r"average_loss"):
        mr.MirroredStrategy(["CPU:0"], num_replicas=2).run(replica, args=(jnp.arange(3.0),))


def of_median(x: Any) -> Any:
    return jnp.sum(mr.get_replica_context().all_reduce(mr.collectives.Median(), x * x) * x)


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "value_and_grad": lambda x: jax.value_and_grad(lambda x: jnp.sum(total(x * x) * x))(x),
    "vjp": lambda x: jax.vjp(lambda x: mean(x * x), x)[1](x)[0],
    "jvp": lambda x: jax.jvp(lambda x: total(x * x), (x,), (x,)),
    "linearize": lambda x: jax.linearize(lambda x: mean(x**3), x)[1](x),
    "jacrev": lambda x: jax.jacrev(lambda x: total(x * x))(x),
    "jacfwd": lambda x: jax.jacfwd(lambda x: mean(x * x))(x),
    "grad of grad": lambda x: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(total(x**3)))(x) * x))(x),
    "grad of vmap": lambda x: jax.grad(lambda x: jnp.sum(jax.vmap(total)(x * x) * x))(x),
    "grad of all_gather": lambda x: jax.grad(
        lambda x: jnp.sum(mr.get_replica_context().all_gather(x, 0) ** 2 * jnp.sum(x))
    )(x),
    "grad of a custom reduction": lambda x: jax.grad(of_median)(x),
    "hessian": in_hessian,
    "checkpoint": in_checkpoint,
}


def leaves_of(result: Any) -> list[Any]:
    return jax.tree.leaves(result, is_leaf=lambda leaf: isinstance(leaf, mr.PerReplica))


@pytest.mark.sampled(8)
@LAYOUTS
@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.first(2)
def test_derivatives_through_eager_reductions_are_those_of_the_compiled_step(name, devices):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS)
    x = strategy.distribute_values_from_function(lambda c: jnp.arange(3.0) + c.replica_id_in_sync_group + 1)
    step = lambda x: strategy.run(DERIVATIVES[name], args=(x,))  # noqa: E731
    found, expected = (
        [np.asarray(part) for leaf in leaves_of(result) for part in strategy.local_results(leaf)]
        for result in (step(x), mr.function(step)(x))
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@LAYOUTS
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_jax_grad_around_a_run_is_right_or_refused(devices, compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS)
    x = strategy.distribute_values_from_function(lambda c: jnp.arange(3.0) + c.replica_id_in_sync_group)

    def loss(w):
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x * w), args=(x,)), axis=None) * w

    gradient = mr.function(jax.grad(loss)) if compiled else jax.grad(loss)
    if compiled or devices == 1:
        np.testing.assert_allclose(gradient(jnp.float32(2.0)), 2 * 2 * (4 * 3 + 3 * 6))
        return
    with pytest.raises(TransformError, match="an eager run on several devices was called under jax.grad"):
        gradient(jnp.float32(2.0))


@jax.custom_jvp
def halved(x: Any) -> Any:
    return total(x)


halved.defjvp(lambda primals, tangents: (halved(*primals), 0.5 * tangents[0]))


@LAYOUTS
@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.first(2)
def test_a_rule_around_a_collective_is_used_or_refused(devices, deterministic):
    """A tape around the run used the derivative of the collective where replicas share a device, not the rule."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, deterministic=deterministic)
    with strategy.scope():
        weight = mr.Variable(2.0)

    def inside() -> Any:
        with mr.GradientTape() as tape:
            loss = halved(weight.read_value()) * 10.0
        return tape.gradient(loss, weight)

    @mr.function
    def around() -> Any:
        with mr.GradientTape() as tape:
            loss = strategy.reduce("SUM", strategy.run(lambda: halved(weight.read_value()) * 10.0), axis=None)
        return tape.gradient(loss, weight)

    gradients = strategy.local_results(mr.function(lambda: strategy.run(inside))())
    np.testing.assert_allclose([float(one) for one in gradients], 5.0)
    with pytest.raises(TapeError if devices == REPLICAS and not deterministic else MergeError):
        around()
