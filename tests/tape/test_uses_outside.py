"""A tape knows per-replica values after they have been used where it does not record: after its block, or while paused.

To use a value the library may need one array of its components. The array must not take their place, because the tape
knows the components by their identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import mirrored as mr

VALUES = [1.0, 3.0]
USES: dict[str, Callable[[Any, Any], Any]] = {
    "reduce": lambda strategy, y: strategy.reduce("SUM", y, axis=None),
    "reduce along an axis": lambda strategy, y: strategy.reduce("SUM", y, axis=0),
    "reduce_to": lambda strategy, y: strategy.extended.reduce_to("MEAN", y, "/cpu:0"),
    "reduce and gather": lambda strategy, y: (strategy.reduce("SUM", y, axis=None), strategy.gather(y, axis=-1)),
    "gather": lambda strategy, y: strategy.gather(y, axis=0),
    "local results": lambda strategy, y: strategy.experimental_local_results(y),
    "repr": lambda strategy, y: repr(y),
    "run": lambda strategy, y: strategy.run(lambda own: own + 1.0, args=(y,)),
    "compiled reduce": lambda strategy, y: mr.function(lambda y: strategy.reduce("SUM", y, axis=None))(y),
    "compiled run": lambda strategy, y: mr.function(lambda y: strategy.run(lambda own: own + 1.0, args=(y,)))(y),
    "assign": lambda strategy, y: mr.Variable([0.0], aggregation="SUM").assign(y),
    "assign to a sync-on-read variable": lambda strategy, y: mr.Variable(
        [0.0], synchronization="ON_READ", aggregation="SUM"
    ).assign(y),
    "optimizer": lambda strategy, y: mr.optimizers.SGD(0.1).apply_gradients([(y, mr.Variable([0.0]))]),
}


@pytest.fixture(params=[1, 2])
def strategy(request: pytest.FixtureRequest) -> Any:
    return mr.MirroredStrategy([f"CPU:{k}" for k in range(request.param)], num_replicas=2)


def distributed(strategy: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray([VALUES[context.replica_id_in_sync_group]])
    )


def numbers(value: Any) -> list[float]:
    return [float(one[0]) for one in value.values]


def used(strategy: Any, use: str, value: Any) -> None:
    with strategy.scope():
        USES[use](strategy, value)


def squares(strategy: Any, value: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(lambda own: jnp.sum(own * own), args=(value,)), axis=None)


@pytest.mark.parametrize("use", USES)
def test_a_result_is_differentiated_after_a_use(strategy: Any, use: str) -> None:
    with strategy.scope():
        v = mr.Variable(2.0)
    x = distributed(strategy)
    with mr.GradientTape() as tape:
        y = strategy.run(lambda own: own * v, args=(x,))
    used(strategy, use, y)
    assert float(tape.gradient(y, v)) == sum(VALUES)


@pytest.mark.parametrize("use", USES)
def test_a_result_is_a_source_after_a_use(strategy: Any, use: str) -> None:
    with strategy.scope():
        v = mr.Variable(2.0)
    x = distributed(strategy)
    with mr.GradientTape() as tape:
        y = strategy.run(lambda own: own * v, args=(x,))
        with tape.stop_recording():
            used(strategy, use, y)
        loss = squares(strategy, y)
    used(strategy, use, y)
    assert numbers(tape.gradient(loss, y)) == [4.0, 12.0]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_watched_value_is_used_everywhere(strategy: Any, use: str, compiled: bool) -> None:
    """Used before it is watched, between two recorded uses, while the tape is paused, and after its block."""
    x = distributed(strategy)
    loss_of = lambda x: squares(strategy, x)  # noqa: E731
    if compiled:
        loss_of = mr.function(loss_of)
    used(strategy, use, x)
    with mr.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(x)
        used(strategy, use, x)
        with tape.stop_recording():
            used(strategy, use, x)
        loss += loss_of(x)
    used(strategy, use, x)
    assert numbers(tape.gradient(loss, x)) == [4.0, 12.0]


def test_gather_and_reduce_have_the_same_results_again(strategy: Any) -> None:
    """From the second call on, one array of the components exists."""
    x = distributed(strategy)
    assert strategy.gather(x, axis=0).tolist() == VALUES
    for _ in range(2):
        assert strategy.reduce("SUM", x, axis=None).tolist() == [sum(VALUES)]
        assert strategy.gather(x, axis=-1).tolist() == VALUES
    with pytest.raises(mr.errors.MirroredError, match="axis=1"):
        strategy.gather(x, axis=1)


def test_a_compiled_function_is_traced_once_for_values_that_were_used(strategy: Any) -> None:
    traces = []

    @mr.function
    def doubled(x: Any) -> Any:
        traces.append(None)
        return strategy.run(lambda own: 2 * own, args=(x,))

    x = distributed(strategy)
    doubled(x)
    strategy.reduce("SUM", x, axis=None)
    doubled(x)
    doubled(distributed(strategy))
    assert len(traces) == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_components_of_a_gradient_combine_as_those_of_the_value(strategy: Any, compiled: bool, is_used: bool) -> None:
    x = distributed(strategy)
    loss_of = lambda x: squares(strategy, x) ** 2  # noqa: E731
    if compiled:
        loss_of = mr.function(loss_of)
    if is_used:
        loss_of(x)
    with mr.GradientTape() as outer:
        outer.watch(x)
        with mr.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(x)
        one, other = tape.gradient(loss, x).values
        total = one[0] + other[0]
    assert float(total) == 4 * 10 * sum(VALUES)
    # The second derivative of (a**2 + b**2)**2 by a, plus the mixed one: 4 * (a**2 + b**2) + 8 * a * (a + b).
    assert numbers(outer.gradient(total, x)) == [40.0 + 8 * 1 * 4, 40.0 + 8 * 3 * 4]
