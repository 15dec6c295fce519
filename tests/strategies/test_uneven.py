"""R replicas on D devices give the results of R replicas on one device, also if D does not divide R."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from strategies.uneven_programs import PROGRAMS, plainly

LAYOUTS = [(3, 8), (4, 6), (2, 5)]
MODES = {"eager": (plainly, False), "compiled": (mr.function, False), "deterministic": (mr.function, True)}


# Eager replicas cannot wait for each other in a loop; the sign of a sum of -0.0 is XLA's choice, unless deterministic.
# On one device XLA folds closed-over arrays at compile time, with other bits than on several, even or uneven.
LEFT_OUT = {
    ("loops_with_collectives", "eager"),
    ("negative_zeros", "eager"),
    ("negative_zeros", "compiled"),
    ("values_that_a_function_closes_over", "deterministic"),
}
CASES = [
    (name, *layout, mode) for name in PROGRAMS for layout in LAYOUTS for mode in MODES if (name, mode) not in LEFT_OUT
]


@functools.cache
def result(name: str, devices: int, replicas: int, mode: str) -> Any:
    compile_, deterministic = MODES[mode]
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    return PROGRAMS[name](strategy, compile_)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "devices", "replicas", "mode"), CASES)
@pytest.mark.first(1)
@pytest.mark.long
def test_an_uneven_layout_gives_the_results_of_one_device(name, devices, replicas, mode):
    found, wanted = (result(name, count, replicas, mode) for count in (devices, 1))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if mode == "deterministic":
            assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def state_on(devices: int, replicas: int) -> tuple[Any, Any, Any]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    kinds = mr.VariableAggregation
    with strategy.scope():
        total, alone = (
            mr.Variable(
                jnp.zeros(2), synchronization=mr.VariableSynchronization.ON_READ, aggregation=kind, name=kind.name
            )
            for kind in (kinds.SUM, kinds.NONE)
        )
    return strategy, total, alone


def components(variable: Any) -> list[list[float]]:
    return [np.asarray(one.read_value()).tolist() for one in variable.values]


@pytest.mark.parametrize(
    ("saved_on", "restored_on"),
    [((4, 8), (3, 8)), ((3, 8), (4, 8)), ((3, 8), (1, 8)), ((2, 5), (3, 5)), ((4, 6), (3, 8)), ((3, 8), (2, 5))],
)
@pytest.mark.first(3)
def test_per_replica_state_is_restored_in_other_layouts(tmp_path, saved_on, restored_on):
    strategy, total, alone = state_on(*saved_on)

    @mr.function
    def step():
        def replica():
            index = mr.get_replica_context().replica_id_in_sync_group
            total.assign_add(jnp.stack([1.0 + index, 0.5]))
            alone.assign_add(jnp.stack([-1.0 * index, 2.0]))

        strategy.run(replica)

    step()
    assert components(alone) == [[-r, 2.0] for r in range(saved_on[1])]
    saved = mr.checkpoint.Checkpoint(total=total, alone=alone).save(tmp_path / "saved")
    _, restored, restored_alone = state_on(*restored_on)
    mr.checkpoint.Checkpoint(total=restored, alone=restored_alone).restore(saved)
    np.testing.assert_allclose(restored.numpy(), total.numpy(), rtol=1e-6)
    few = min(saved_on[1], restored_on[1])
    kept = [[-r, 2.0] for r in range(few)]
    assert components(restored_alone) == kept + [[0.0, 0.0]] * (restored_on[1] - few)


def test_nan_and_garbage_in_padded_rows_reach_no_replica():
    strategy = mr.MirroredStrategy(jax.devices()[:3], num_replicas=8)
    layout = strategy.device_assignment
    with strategy.scope():
        kinds = mr.VariableAggregation
        state = mr.Variable(jnp.zeros(()), synchronization=mr.VariableSynchronization.ON_READ, aggregation=kinds.SUM)
    rows = np.asarray([0.0, 1, 2, 3, 4, 5, 6, 7, np.nan], np.float32)
    state.store(jax.device_put(rows, layout.sharded))
    x = mr.PerReplica.from_stacked(jax.device_put(rows, layout.sharded), layout)

    def replica(own):
        context = mr.get_replica_context()
        state.assign_add(own)
        reduced = [context.all_reduce(op, own) for op in ("sum", "mean", lambda a: a.min(0), lambda a: a.max(0))]
        return *reduced, context.all_gather(own[None], 0).sum()

    @mr.function
    def step(x):
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = strategy.run(lambda own: own * 2, args=(x,))
            total = strategy.reduce("sum", y, axis=None)
        return strategy.run(replica, args=(x,)), total, tape.gradient(total, x), y

    results, total, gradient, doubled = step(x)
    assert [float(one.values[0]) for one in results] == [28, 3.5, 0, 7, 28]
    assert float(total) == 56
    assert [float(one) for one in gradient.values] == [2.0] * 8
    assert [float(one) for one in doubled.values] == [2.0 * r for r in range(8)]
    assert float(state.numpy()) == 56
    assert components(state) == [2.0 * r for r in range(8)]
    assert [float(strategy.reduce(op, x, axis=None)) for op in ("sum", "mean", lambda a: a.max(0))] == [28, 3.5, 7]
    assert len(repr(x).splitlines()) == 10
    assert "nan" not in repr(x) + repr(state) + repr(strategy.experimental_local_results(x))
    assert [leaf.shape for leaf in jax.tree.leaves(x)] == [()] * 8


def test_only_gradients_are_defined_for_values_with_padded_rows():
    strategy = mr.MirroredStrategy(jax.devices()[:2], num_replicas=3)
    x = mr.PerReplica.from_stacked(jnp.ones((4, 2)), strategy.device_assignment)
    with mr.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = strategy.reduce("sum", x, axis=None)
    with pytest.raises(mr.errors.ArgumentTypeError, match="does not divide its number of replicas"):
        tape.jacobian(y, x)
    assert [part.tolist() for part in tape.gradient(y, x).values] == [[1.0, 1.0]] * 3


def test_mirrored_values_that_differ_are_found_in_uneven_layouts():
    strategy = mr.MirroredStrategy(jax.devices()[:2], num_replicas=3)
    with strategy.scope():
        v = mr.Variable(0.0, trainable=False)

    @mr.function
    def right():
        strategy.run(lambda: v.assign(mr.get_replica_context().all_reduce("sum", 2.0 + v)))

    @mr.function
    def wrong():
        strategy.run(lambda: v.assign(mr.get_replica_context().replica_id_in_sync_group * 1.0))

    right()
    assert float(v.numpy()) == 6.0
    with pytest.raises(mr.errors.ReplicaDivergenceError):
        wrong()
    assert float(v.numpy()) == 6.0
