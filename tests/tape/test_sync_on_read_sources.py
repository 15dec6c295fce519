"""Gradients with respect to sync-on-read variables: the same in every layout, eager and compiled.

Inside `run` each replica gets the gradient with respect to its own component. Outside it is the sum over all
components, and an error where they are not aggregated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import TapeError
from mirrored.tape.forward_accumulator import ForwardAccumulator

LAYOUTS: dict[str, Callable[[], Any]] = {
    "1 replica": lambda: mr.MirroredStrategy(["CPU:0"]),
    "2 devices": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"]),
    "2 on 1 device": lambda: mr.MirroredStrategy(["CPU:0"], num_replicas=2),
    "deterministic": lambda: mr.MirroredStrategy(["CPU:0"], num_replicas=2, deterministic=True),
}
EVERYWHERE = [pytest.mark.parametrize("layout", LAYOUTS), pytest.mark.parametrize("compiled", [False, True])]
AGGREGATIONS = pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
WATCHED = pytest.mark.parametrize("watched", [False, True], ids=["trainable", "watched"])


def everywhere(test: Callable[..., None]) -> Callable[..., None]:
    for mark in EVERYWHERE:
        test = mark(test)
    return test


def made(layout: str, aggregation: str, watched: bool = False, synchronization: str = "ON_READ") -> tuple[Any, Any]:
    """Returns a strategy, and a variable with the components 1, 2, ..."""
    strategy = LAYOUTS[layout]()
    with strategy.scope():
        v = mr.Variable(0.0, synchronization=synchronization, aggregation=aggregation, trainable=not watched, name="v")
    if synchronization == "ON_READ":
        strategy.run(lambda: v.assign(jnp.float32(1.0) + mr.get_replica_context().replica_id_in_sync_group))
    return strategy, v


def called(function: Callable[[], Any], compiled: bool) -> Any:
    return (mr.function(function) if compiled else function)()


def per_replica(strategy: Any, value: Any) -> list[float]:
    return [float(one) for one in strategy.experimental_local_results(value)]


@everywhere
@AGGREGATIONS
@WATCHED
@pytest.mark.sampled(12)
def test_each_replica_gets_the_gradient_of_its_own_component(layout, compiled, aggregation, watched):
    strategy, v = made(layout, aggregation, watched)

    def replica():
        with mr.GradientTape() as tape:
            if watched:
                tape.watch(v)
            loss = v * v * 3.0
        return tape.gradient(loss, v)

    expected = [6.0 * (1 + replica) for replica in range(strategy.num_replicas_in_sync)]
    assert per_replica(strategy, called(lambda: strategy.run(replica), compiled)) == expected


def outside(strategy, v, watched):
    with mr.GradientTape() as tape:
        if watched:
            tape.watch(v)
        loss = strategy.reduce("SUM", strategy.run(lambda: v * v * 3.0), axis=None)
    return tape.gradient(loss, v)


def summed_components(v, watched):
    """Returns a tape, and a loss that it has computed from the components of `v`."""
    with mr.GradientTape() as tape:
        if watched:
            tape.watch(v)
        loss = sum(one * one * 3.0 for one in v.values)
    return tape, loss


def of_components(strategy, v, watched):
    tape, loss = summed_components(v, watched)
    return tape.gradient(loss, v)


def jacobian(strategy, v, watched):
    tape, loss = summed_components(v, watched)
    return tape.jacobian(loss, v)


@everywhere
@AGGREGATIONS
@WATCHED
@pytest.mark.parametrize("program", [outside, of_components, jacobian])
@pytest.mark.sampled(12)
@pytest.mark.first(8)
def test_outside_run_it_is_the_sum_or_an_error(layout, compiled, aggregation, watched, program):
    strategy, v = made(layout, aggregation, watched)
    if aggregation == "NONE":
        with pytest.raises(TapeError, match=r"'v' with aggregation NONE, in cross-replica context(?s:.*)inside the"):
            called(lambda: program(strategy, v, watched), compiled)
        return
    expected = sum(6.0 * (1 + replica) for replica in range(strategy.num_replicas_in_sync))
    assert float(called(lambda: program(strategy, v, watched), compiled)) == expected


@everywhere
@pytest.mark.parametrize("kind", ["ON_READ", "ON_WRITE"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.sampled(6)
def test_the_copy_of_one_replica_is_no_source(layout, compiled, kind, inside):
    strategy, v = made(layout, "SUM", synchronization=kind)

    def program():
        with mr.GradientTape() as tape:
            loss = v * v * 3.0
        return tape.gradient(loss, v.values[0])

    if strategy.num_replicas_in_sync == 1:  # the copy is the variable
        assert float(called(lambda: strategy.run(program), compiled)) == (6.0 if kind == "ON_READ" else 0.0)
        return
    with pytest.raises(TapeError, match="the copy of one replica"):
        called(lambda: strategy.run(program) if inside else program(), compiled)


def test_other_derivatives_and_watch_refuse_them_too():
    _, v = made("2 on 1 device", "NONE")
    with pytest.raises(TapeError, match=r"^ForwardAccumulator: .*'v' with aggregation NONE"):
        ForwardAccumulator(v, jnp.float32(1.0))
    with pytest.raises(TapeError, match=r"^GradientTape\.watch: .*the copy of one replica"):
        mr.GradientTape().watch(v.values[1])


def test_a_plain_variable_has_one_component():
    v = mr.Variable(3.0, synchronization="ON_READ", aggregation="NONE", trainable=True)
    with mr.GradientTape() as tape:
        loss = v * v
    assert float(tape.gradient(loss, v)) == 6.0


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint, jax.vmap], ids=["jit", "checkpoint", "vmap"])
def test_the_first_read_may_be_that_of_a_transformed_function(transform):
    """The components that a variable keeps for later reads are arrays, and not what a transform has traced."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(3.0, synchronization="ON_READ", aggregation="SUM")
    x = jnp.arange(3.0)
    scaled = transform(lambda x: v.read_value() * x)

    def step() -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = scaled(x)
        return y, tape.gradient(y, x)

    ys, gradients = strategy.run(step)
    for k in range(2):
        np.testing.assert_array_equal(ys.values[k], 3 * x)
        np.testing.assert_array_equal(gradients.values[k], np.full(3, 3.0))
    assert [float(one) for one in v.values] == [3.0, 3.0]
