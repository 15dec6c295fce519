"""Many steps in one dispatch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


def momentum_step(strategy: Any, v: Any, count: Any) -> Any:
    """A step that assigns two variables and returns a reduced and a per-replica value."""

    def replica(x: Any) -> Any:
        total = mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, x.sum(0))
        v.assign(0.5 * v + total)
        count.assign_add(1)
        return x.sum()

    def step(x: Any) -> Any:
        out = strategy.run(replica, args=(x,))
        return strategy.reduce(mr.ReduceOp.SUM, out, axis=None), out

    return step


@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 2), (2, 4)])
def test_equals_single_steps(devices: int, replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    batches = list(strategy.distribute_dataset([np.full((4, 2), i, np.float32) for i in range(1, 7)]))
    results = []
    for steps in (None, 3):
        with strategy.scope():
            v, count = mr.Variable(jnp.zeros(2)), mr.Variable(0, trainable=False)
        step = mr.function(momentum_step(strategy, v, count), steps_per_call=steps)
        if steps is None:
            sums = [float(step(x)[0]) for x in batches]
        else:
            pairs = [step(batches[i : i + 3]) for i in (0, 3)]
            sums = [float(s) for reduced, _ in pairs for s in reduced]
            assert [component.shape for component in pairs[0][1].values] == [(3,)] * replicas
        assert step.trace_count == 1
        results.append((sums, v.numpy().tolist(), int(count.numpy())))
    assert results[0] == results[1]


def test_eager_mode_makes_the_same_steps() -> None:
    v = mr.Variable(0.0)
    step = mr.function(lambda x: v.assign_add(x), steps_per_call=2)
    compiled = step([jnp.float32(1), jnp.float32(2)])
    mr.run_functions_eagerly(True)
    try:
        eager = step([jnp.float32(1), jnp.float32(2)])
    finally:
        mr.run_functions_eagerly(False)
    assert compiled.tolist() == [1, 3]
    assert eager.tolist() == [4, 6]


def test_eager_mode_returns_results_that_are_no_arrays_as_a_program_does() -> None:
    v = mr.Variable(0.0)

    def step(x: Any) -> Any:
        v.assign_add(x)
        return {"number": 1.0, "flag": True, "name": "a", "variable": v, "array": v.read_value()}

    results = []
    for eager in (False, True):
        v.assign(0.0)
        mr.run_functions_eagerly(eager)
        try:
            results.append(mr.function(step, steps_per_call=2)([jnp.float32(1)] * 2))
        finally:
            mr.run_functions_eagerly(False)
    for result in results:
        assert result.pop("array").tolist() == [1.0, 2.0]
        assert result.pop("variable") is v
        assert result == {"number": 1.0, "flag": True, "name": "a"}
        assert type(result["number"]) is float


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_refuses_fewer_than_one_step(steps: Any) -> None:
    with pytest.raises(mr.errors.ArgumentError, match=rf"function: steps_per_call={steps}\n[\s\S]*at least one"):
        mr.function(lambda x: x, steps_per_call=steps)
    assert mr.function(lambda x: x, steps_per_call=np.int64(1))([jnp.float32(2)]).tolist() == [2.0]


def test_refuses_another_number_of_batches() -> None:
    step = mr.function(lambda x: x, steps_per_call=3)
    with pytest.raises(mr.errors.ArgumentError, match="got 2 batches"):
        step([jnp.ones(1), jnp.ones(1)])


def test_refuses_an_iterator_with_the_remedy() -> None:
    step = mr.function(lambda x: x, steps_per_call=2)
    with pytest.raises(mr.errors.ArgumentError, match=r"pass \[next\(iterator\) for _ in range\(2\)\]"):
        step(iter([jnp.ones(1), jnp.ones(1)]))


def test_refuses_batches_of_different_shapes() -> None:
    step = mr.function(lambda x: x, steps_per_call=2)
    with pytest.raises(mr.errors.ArgumentError, match="batches of one call differ in structure, shapes"):
        step([jnp.ones(1), jnp.ones(2)])


def test_refuses_replicas_with_batches_of_different_shapes() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    batches = list(strategy.distribute_dataset([np.ones((3, 1), np.float32)] * 2))
    step = mr.function(lambda x: strategy.run(lambda x: x.sum(), args=(x,)), steps_per_call=2)
    with pytest.raises(mr.errors.ArgumentError, match="per-replica batches of a global batch differ in shape"):
        step(batches)


def test_a_replica_function_of_several_steps_is_refused():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    step = mr.function(lambda x: x + 1, steps_per_call=2)
    with pytest.raises(mr.errors.ArgumentError, match=r"Strategy.run(.|\n)*steps_per_call=2"):
        strategy.run(step, args=(jnp.ones(2),))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 2), (2, 3)])
def test_inside_another_function_the_results_are_those_at_top_level(devices: int, replicas: int, eager: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)

    def values(first: int) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: jnp.float32(first + context.replica_id_in_sync_group)
        )

    def step(x: Any) -> Any:
        return {"y": strategy.run(lambda v: v * 2.0, args=(x,)), "name": "step", "number": jnp.float32(3), "none": None}

    several = mr.function(step, steps_per_call=3)
    batches = [values(0), values(10), values(20)]
    mr.run_functions_eagerly(eager)
    try:
        found = mr.function(lambda *batches: several(list(batches)))(*batches)
    finally:
        mr.run_functions_eagerly(False)
    assert [one.tolist() for one in found["y"].values] == [[2 * r, 20 + 2 * r, 40 + 2 * r] for r in range(replicas)]
    assert (found["name"], found["number"].tolist(), found["none"]) == ("step", [3.0, 3.0, 3.0], None)
    at_top = several(batches)
    assert [one.tolist() for one in at_top["y"].values] == [one.tolist() for one in found["y"].values]
    assert (at_top["name"], at_top["number"].tolist()) == ("step", [3.0, 3.0, 3.0])


def test_a_per_replica_result_inside_another_function_can_be_reduced() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    several = mr.function(lambda x: strategy.run(lambda v: v * 1.0, args=(x,)), steps_per_call=2)
    batches = [mr.PerReplica((jnp.float32(i), jnp.float32(i + 1))) for i in (0, 10)]
    reduced = mr.function(lambda *xs: strategy.reduce(mr.ReduceOp.SUM, several(list(xs)), axis=None))(*batches)
    assert reduced.tolist() == [1.0, 21.0]
