"""Gradients of `Strategy.reduce` for a tape around `run`: every operation and axis, for even and uneven batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import Median, ReduceOp
from mirrored.strategies.recorded_collectives import all_reduce_recorded

_START = 0.7
_OPS = ("SUM", "MEAN")


def _batches(sizes: list[int]) -> list[Any]:
    rows = np.arange(3 * sum(sizes), dtype=np.float32).reshape(-1, 3) / 10
    return np.split(rows, np.cumsum(sizes)[:-1])


def _output(x: Any, v: Any) -> Any:
    return jnp.sin(x * v)


def _expected(batches: list[Any], op: str, axis: Any) -> float:
    """The gradient of the squared norm of the reduced outputs, computed by JAX on one device."""

    def loss(v: Any) -> Any:
        outputs = [_output(jnp.asarray(batch), v) for batch in batches]
        if axis is None:
            stacked = jnp.stack([jnp.sum(output, 0) for output in outputs])
            reduced = jnp.sum(stacked, 0) if op == "SUM" else jnp.mean(stacked, 0)
        elif axis == 1:
            stacked = jnp.stack(outputs)
            reduced = jnp.sum(stacked, (0, 2)) if op == "SUM" else jnp.mean(stacked, (0, 2))
        else:
            rows = jnp.concatenate(outputs)
            reduced = jnp.sum(rows, axis) if op == "SUM" else jnp.mean(rows, axis)
        return jnp.sum(reduced**2)

    return float(jax.grad(loss)(jnp.float32(_START)))


def _gradients(strategy: Any, batches: list[Any], axes: Sequence[Any], mode: str) -> dict[Any, float]:
    """The gradients of all operations and axes, from one step."""
    with strategy.scope():
        v = mr.Variable(_START)
    x = strategy.distribute_values_from_function(lambda c: jnp.asarray(batches[c.replica_id_in_sync_group]))

    def replica(x: Any) -> Any:
        output = _output(x, v)
        return output, jnp.sum(output, 0)

    def step(x: Any) -> Any:
        with mr.GradientTape(persistent=True) as tape:
            output, total = strategy.run(mr.function(replica) if mode == "compiled run" else replica, (x,))
            losses = [
                jnp.sum(strategy.reduce(op, total if axis is None else output, axis=axis) ** 2)
                for op in _OPS
                for axis in axes
            ]
        return [tape.gradient(loss, v) for loss in losses]

    found = (mr.function(step) if mode == "compiled step" else step)(x)
    return dict(zip(((op, axis) for op in _OPS for axis in axes), map(float, found), strict=True))


def _check(strategy: Any, batches: list[Any], axes: Sequence[Any], mode: str) -> None:
    found = _gradients(strategy, batches, axes, mode)
    assert found == pytest.approx({key: _expected(batches, *key) for key in found}, rel=2e-5)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", ["eager", "compiled run", "compiled step"])
@pytest.mark.parametrize(("replicas", "devices"), [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.first(1)
def test_even_batches(deterministic: bool, replicas: int, devices: int, mode: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    _check(strategy, _batches([2] * replicas), (None, 0, 1, (0, 1)), mode)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [[3, 2], [2, 0], [2, 2, 1, 0]], ids=str)
@pytest.mark.parametrize("local", [1, 2], ids=["one replica per device", "two per device"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.first(1)
def test_uneven_batches(deterministic: bool, local: int, sizes: list[int]) -> None:
    devices = jax.devices()[: len(sizes) // local]
    strategy = mr.MirroredStrategy(devices, num_replicas=len(sizes), deterministic=deterministic)
    _check(strategy, _batches(sizes), (None, 0, -2, (0, 1)), "eager")


@pytest.mark.parametrize("op", ["SUM", "MEAN", Median()], ids=str)
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.first(3)
def test_values_that_the_tape_tracks_beside_others(deterministic: bool, op: Any) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2], deterministic=deterministic)
    with strategy.scope():
        v = mr.Variable(2.0)
        count = mr.Variable(
            3.0, synchronization=mr.VariableSynchronization.ON_READ, aggregation=mr.VariableAggregation.SUM
        )
    x = strategy.distribute_values_from_function(lambda c: jnp.float32(c.replica_id_in_sync_group + 1))
    with mr.GradientTape() as tape:
        output = strategy.run(lambda x: x * v, (x,))
        tracked, untracked, counted = strategy.reduce(op, [output, x, count], axis=None)
        loss = tracked * untracked * counted
    factor = 2.0 if op == "SUM" else 1.0
    assert [float(tracked), float(untracked), float(counted)] == [3.0 * factor, 1.5 * factor, 3.0 * factor]
    assert float(tape.gradient(loss, v)) == pytest.approx(1.5 * 1.5 * 3.0 * factor**3)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
def test_the_sum_over_workers_of_floats_beside_integers_has_a_gradient(op):
    """JAX passes float0 arrays as cotangents of integers."""

    def reduce(op, lists):
        totals = [components[0] + components[1] for components in lists]
        return [[total / 2 if op is ReduceOp.MEAN else total] * 2 for total in totals]

    assignment = mr.MirroredStrategy(jax.devices()[:2]).device_assignment

    def quotient(x):
        counts, sums = all_reduce_recorded(reduce, op, [[jnp.int32(3)] * 2, [x, 2 * x]], assignment)
        return sums[0] / counts[0]

    assert (float(quotient(jnp.float32(2.0))), float(jax.grad(quotient)(jnp.float32(2.0)))) == (1.0, 0.5)


@pytest.mark.parametrize("axis", [0, (0, 1)])
@pytest.mark.parametrize("op", _OPS)
def test_jacobian_of_a_reduced_result_whose_rows_the_devices_do_not_divide(op: str, axis: Any) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(_START)
    batches = _batches([2, 2])
    batch = strategy.experimental_distribute_values_from_function(lambda c: batches[c.replica_id_in_sync_group])
    forward = mr.function(lambda x: strategy.run(lambda x: _output(x, v), args=(x,)))
    with mr.GradientTape() as tape:
        reduced = strategy.reduce(op, forward(batch), axis=axis)
    jacobian = tape.jacobian(reduced, v)
    reduce = jnp.sum if op == "SUM" else jnp.mean
    expected = jax.jacobian(lambda v: reduce(_output(np.concatenate(batches), v), axis))(jnp.float32(_START))
    np.testing.assert_allclose(jacobian, expected, rtol=1e-5)
