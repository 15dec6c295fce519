"""Jitted helpers that outlive the replica function: each replica gets its own answer, in every layout.

They ask which replica they run on, or read an attribute that the replica function has just set.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored._jax import caches
from strategies.programs import parts

LAYOUTS = ((1, 2), (2, 2), (2, 4))


def replica_id() -> Any:
    return mr.get_replica_context().replica_id_in_sync_group


def in_jit() -> Callable[[Any], Any]:
    return jax.jit(lambda x: x + replica_id())


def in_scan() -> Callable[[Any], Any]:
    @jax.jit
    def helper(x: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (carry + replica_id(), None), x, length=1)[0]

    return helper


def under_a_tape() -> Callable[[Any], Any]:
    helper = in_jit()

    def taped(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = helper(x) * x
        return tape.gradient(y, x) - x

    return taped


def in_a_derivative_rule() -> Callable[[Any], Any]:
    helper = in_jit()

    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    identity.defvjp(lambda x: (x, None), lambda _, cotangent: (helper(cotangent) - 1.0,))

    def taped(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = identity(x)
        return tape.gradient(y, x)

    return taped


HELPERS = {make.__name__: make for make in (in_jit, in_scan, under_a_tape, in_a_derivative_rule)}


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches._Replicas, "is_separate", False)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS, ids=[f"{d}x{r // d}" for d, r in LAYOUTS])
@pytest.mark.parametrize("name", HELPERS)
@pytest.mark.first(12)
def test_a_helper_sees_the_id_of_its_own_replica(name, devices, replicas, compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    helper = HELPERS[name]()

    def step() -> Any:
        return strategy.run(lambda: helper(jnp.float32(0)))

    run = mr.function(step) if compiled else step
    assert parts(strategy, run()) == list(range(replicas))
    assert parts(strategy, run()) == list(range(replicas))


def test_replicas_that_wait_at_a_merge_are_told_apart_too():
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=3)
    helper = in_jit()

    def replica() -> Any:
        before = jax.jit(lambda x: x * 2)(jnp.float32(1))
        mr.get_replica_context().all_reduce("SUM", before)
        return helper(jnp.float32(0))

    assert parts(strategy, strategy.run(replica)) == [0, 1, 2]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_helper_sees_the_number_of_replicas_of_its_own_strategy(compiled):
    helper = jax.jit(lambda x: x / mr.get_strategy().num_replicas_in_sync)
    of_context = jax.jit(lambda x: x / mr.get_replica_context().num_replicas_in_sync)
    for replicas in (1, 2, 4):
        strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=replicas)
        for asked in (helper, of_context):

            def step(strategy: Any = strategy, asked: Any = asked) -> Any:
                return strategy.run(lambda: asked(jnp.float32(8)))

            run = mr.function(step) if compiled else step
            assert parts(strategy, run()) == [8 / replicas] * replicas
    assert float(helper(jnp.float32(8))) == 8.0


def over(read: Callable[[], Any]) -> dict[str, Callable[[Any], Any]]:
    """Functions of x that give x * read(), each made once and traced by JAX."""

    def body(x: Any) -> Any:
        return x * read()

    def carried(carry: Any, _: None) -> tuple[Any, None]:
        return body(carry), None

    def unchanged(x: Any) -> Any:
        return x

    @jax.custom_vjp
    def with_a_rule(x: Any, factor: Any) -> Any:
        return x * factor

    with_a_rule.defvjp(lambda x, f: (x * f, (x, f)), lambda saved, g: (g * saved[1], g * saved[0]))
    return {
        "jit": jax.jit(body),
        "nested jit": jax.jit(lambda x: jax.jit(body)(x)),
        "checkpoint": jax.checkpoint(body),
        "scan": lambda x: jax.lax.scan(carried, x, length=1)[0],
        "cond": lambda x: jax.lax.cond(jnp.sum(x) > -1e9, body, unchanged, x),
        "fori": lambda x: jax.lax.fori_loop(0, 1, lambda _, carry: body(carry), x),
        "vmap": lambda x: jax.vmap(jax.jit(body))(x[None])[0],
        "rule": jax.jit(lambda x: with_a_rule(x, read())),
    }


KINDS = tuple(over(lambda: 1.0))


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (1, 3), (2, 3)], ids=["1", "2", "1x3", "3 on 2"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(12)
def test_a_helper_reads_the_attribute_that_its_own_replica_has_just_set(kind, devices, replicas, deterministic):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    module = types.SimpleNamespace()
    helper = over(lambda: module.mask)[kind]
    with strategy.scope():
        w = mr.Variable(2.0)

    def replica(x: Any) -> Any:
        with mr.GradientTape() as tape:
            module.mask = x * w
            y = helper(jnp.float32(1.0))
        return y, tape.gradient(y, w)

    @mr.function
    def step(x: Any) -> Any:
        return strategy.run(replica, args=(x,)), strategy.run(replica, args=(strategy.run(lambda x: x * 10, (x,)),))

    ids = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(1 + context.replica_id_in_sync_group)
    )
    for results, factor in zip(step(ids), (1, 10), strict=True):
        want = [factor * (1.0 + i) for i in range(replicas)]
        assert parts(strategy, results[0]) == [2 * one for one in want]
        assert parts(strategy, results[1]) == want


def test_a_replica_reuses_its_own_trace_after_a_merge():
    traces = 0

    @jax.jit
    def helper(x: Any) -> Any:
        nonlocal traces
        traces += 1
        return x + 1

    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=3)

    def replica() -> Any:
        return helper(mr.get_replica_context().all_reduce("SUM", helper(helper(jnp.float32(0)))))

    assert parts(strategy, mr.function(lambda: strategy.run(replica))()) == [7.0] * 3
    assert traces == 3


def test_eager_replicas_share_a_trace_that_does_not_know_them():
    traces = 0

    @jax.jit
    def helper(x: Any) -> Any:
        nonlocal traces
        traces += 1
        return x + 1

    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=4)
    strategy.run(lambda: helper(jnp.float32(0)))
    assert traces == 1
