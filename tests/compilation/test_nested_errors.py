"""An exception in a nested compiled function undoes the assignments of that function, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf

OUTER: dict[str, Callable[[Any, Callable[[], Any]], Any]] = {
    "called eagerly": lambda strategy, step: step(),
    "compiled": lambda strategy, step: mr.function(step)(),
    "eager run": lambda strategy, step: strategy.run(step),
    "compiled run": lambda strategy, step: mr.function(lambda: strategy.run(step))(),
    "nested run": lambda strategy, step: mr.function(lambda: mr.function(lambda: strategy.run(step))())(),
    "AutoGraph": lambda strategy, step: tf.function(lambda: strategy.run(step))(),
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mirrored": {"aggregation": mr.VariableAggregation.MEAN},
    "sync on read": {
        "synchronization": mr.VariableSynchronization.ON_READ,
        "aggregation": mr.VariableAggregation.MEAN,
    },
}


def failing(variable: mr.Variable, steps: int | None) -> Callable[[], Any]:
    """Returns a function that calls a compiled function, which raises in its last step after the assignments."""

    def call() -> Any:
        def assign(x: Any) -> None:
            variable.assign(variable.read_value() + x)
            calls.append(x)
            if len(calls) == (steps or 1):
                raise ValueError("raised after an assignment")

        calls: list[Any] = []
        if steps is None:
            return mr.function(assign)(jnp.float32(100.0))
        return mr.function(assign, steps_per_call=steps)([(jnp.float32(100.0),)] * steps)

    return call


CASES = [
    (outer, kind, steps)
    for outer in OUTER
    for kind in KINDS
    for steps in (None, 2)
    if kind != "plain" or outer in ("called eagerly", "compiled")  # each replica of a run adds to the one value
    if steps is None or outer != "called eagerly"  # the steps of a compiled call are traced once
]


@pytest.mark.first(37)
@pytest.mark.parametrize(("outer", "kind", "steps"), CASES)
@pytest.mark.ways(replicas=(2,))
def test_the_assignments_of_a_nested_function_that_raises_are_undone(
    way: Any, outer: str, kind: str, steps: int | None
) -> None:
    if kind == "plain":
        variable = mr.Variable(1.0)
    else:
        with way.strategy.scope():
            variable = mr.Variable(1.0, **KINDS[kind])
    inner = failing(variable, steps)

    def step() -> Any:
        variable.assign_add(1.0)
        with pytest.raises(ValueError, match="raised after an assignment"):
            inner()
        return variable.read_value() * 10.0

    result = OUTER[outer](way.strategy, step)
    for component in way.strategy.experimental_local_results(result):
        np.testing.assert_allclose(component, 20.0)
    np.testing.assert_allclose(variable.read_value(), 2.0)


def test_a_nested_function_that_runs_eagerly_keeps_its_assignments() -> None:
    variable = mr.Variable(1.0)
    inner = failing(variable, None)
    mr.config.run_functions_eagerly(True)
    try:
        with pytest.raises(ValueError, match="raised after an assignment"):
            inner()
    finally:
        mr.config.run_functions_eagerly(False)
    assert float(variable) == 101.0
