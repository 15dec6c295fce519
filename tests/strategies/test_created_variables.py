"""Variables that the replicas of a compiled `run` create at the first call: as with one replica, on any layout."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import VariableError
from mirrored.testing import Way

layouts = pytest.mark.ways(modes=("compiled", "folded", "uneven"), replicas=(1, 4))


class Lazy:
    """Creates its state at the first call, sets it in the same branch, and counts from then on."""

    def __init__(self, **options: Any) -> None:
        self.count: Any = None
        self.options = options

    def __call__(self) -> Any:
        if self.count is None:
            self.count = mr.Variable(0.0, **self.options)
            self.count.assign(10.0)
        else:
            self.count.assign_add(1.0)
        return self.count.read_value()


@pytest.mark.first(2)
@layouts
@pytest.mark.parametrize("options", [{}, {"synchronization": "on_read", "aggregation": "mean"}], ids=["equal", "apart"])
def test_the_branch_that_creates_state_is_taken_while_tracing_only(way: Way, options: dict[str, Any]) -> None:
    """As in `tf.function` (2.21): the second trace is the program, from the first call on."""
    lazy = Lazy(**options)
    step = mr.function(lambda: way.strategy.reduce("MEAN", way.strategy.run(lazy), axis=None))
    assert [float(step()) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert (float(lazy.count.numpy()), step.trace_count) == (3.0, 2)


@pytest.mark.first(6)
@layouts
@pytest.mark.parametrize("form", ["function in run", "several steps", "function in function", "two runs", "merge"])
def test_in_every_form_of_a_step(way: Way, form: str) -> None:
    lazy = Lazy()

    def run(function: Any = lazy) -> Any:
        return way.strategy.reduce("MEAN", way.strategy.run(function), axis=None)

    if form == "several steps":
        several = mr.function(lambda _: run(), steps_per_call=2)
        assert [*several([(jnp.zeros(()),)] * 2), *several([(jnp.zeros(()),)] * 2)] == [1, 2, 3, 4]
        return

    def merged() -> Any:
        return mr.get_replica_context().merge_call(lambda _: lazy())

    compiled = mr.function(lazy)
    step = {
        "function in run": lambda: run(compiled),
        "function in function": mr.function(lambda: run(compiled)),
        "two runs": mr.function(lambda: [run(lambda: 0.0), run()][1]),
        "merge": mr.function(lambda: run(merged)),
    }[form]
    assert [float(step()) for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.first(3)
@layouts
@pytest.mark.parametrize("arguments", [True, False])
def test_a_variable_that_no_replica_keeps_is_refused(way: Way, arguments: bool) -> None:
    def replica(*given: Any) -> Any:
        total = mr.Variable(0.0, name="total")
        total.assign_add(mr.get_replica_context().all_reduce("SUM", jnp.sum(jnp.ones(2))))
        return total.read_value()

    step = mr.function(lambda *given: way.strategy.run(replica, args=given))
    given = [way.strategy.run(lambda: jnp.ones(2))] if arguments else []
    with pytest.raises(VariableError, match="the function creates variable 'total' and does not keep it"):
        step(*given)
    assert step.trace_count == 0


@layouts
def test_a_variable_that_every_call_would_create_and_keep_is_refused(way: Way) -> None:
    kept: list[Any] = []

    def replica() -> Any:
        kept.append(mr.Variable(1.0, name="kept"))
        return kept[-1] * 2

    step = mr.function(lambda: way.strategy.run(replica))
    with pytest.raises(VariableError, match="creates variable 'kept' again when it is called again"):
        step()


@layouts
def test_initial_values_may_be_drawn_by_numpy(way: Way) -> None:
    rng, made = np.random.default_rng(0), []

    def replica(x: Any) -> Any:
        if not made:
            made.append(mr.Variable(rng.normal(size=(3, 2)).astype(np.float32)))
        return (x @ made[0]).sum()

    step = mr.function(lambda x: way.strategy.reduce("MEAN", way.strategy.run(replica, args=(x,)), axis=None))
    x = way.strategy.run(lambda: jnp.ones((4, 3)))
    first = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    np.testing.assert_allclose([float(step(x)), float(step(x))], 4 * first.sum(), rtol=1e-5)
    assert step.trace_count == 2


@pytest.mark.first(2)
@layouts
def test_slots_of_an_optimizer_do_not_make_a_second_trace(way: Way) -> None:
    with way.strategy.scope():
        v, optimizer = mr.Variable(1.0), mr.optimizers.Adam(0.1)

    def replica() -> None:
        with mr.GradientTape() as tape:
            loss = v * v / way.num_replicas
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    step = mr.function(lambda: way.strategy.run(replica))
    step()
    step()
    assert (step.trace_count, int(optimizer.iterations)) == (1, 2)


@layouts
def test_a_step_under_a_tape(way: Way) -> None:
    """The derivative of a variable that the replicas of a function create at its first call."""
    made: list[Any] = []

    def replica() -> Any:
        if not made:
            made.append(mr.Variable(3.0))
            made[0].assign(5.0)
        return made[0] * made[0]

    step = mr.function(lambda: way.strategy.reduce("MEAN", way.strategy.run(replica), axis=None))
    for _ in range(2):
        with mr.GradientTape() as tape:
            loss = step()
        assert (float(loss), float(tape.gradient(loss, made[0]))) == (9.0, 6.0)
    assert step.trace_count == 2
