"""Reductions and gathers of values that compiled functions close over, and of arrays of 64 bits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.collectives import stacked

VALUES = {"float64": 1 / 3, "int64": 2**40 + 1, "uint64": 2**60 + 1, "complex128": 1 / 3 + 1j}


def strategies() -> dict[str, mr.MirroredStrategy]:
    return {
        "one device": mr.MirroredStrategy(["CPU:0"], num_replicas=4),
        "four devices": mr.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
        "uneven": mr.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], num_replicas=4),
    }


def in_context() -> Any:
    return mr.get_replica_context()


OPERATIONS = {
    "reduce": (lambda s, value: s.reduce("SUM", value, axis=None), 4),
    "reduce an axis": (lambda s, value: s.reduce("SUM", value, axis=0), 12),
    "gather": (lambda s, value: s.gather(value, axis=0), 1),
    "all_reduce": (lambda s, value: s.run(lambda x: in_context().all_reduce("SUM", x), args=(value,)), 4),
    "all_gather": (lambda s, value: s.run(lambda x: in_context().all_gather(x, 0), args=(value,)), 1),
    "compiled before": (lambda s, value: s.reduce("SUM", value, axis=None), 4),
}


@pytest.mark.first(18)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("devices", ["one device", "four devices", "uneven"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_arrays_of_64_bits_keep_their_values(operation: str, devices: str, dtype: str) -> None:
    """Integers wrapped around, and floats were rounded, on some numbers of devices."""
    strategy, number = strategies()[devices], np.dtype(dtype).type(VALUES[dtype])
    with jax.enable_x64(True):
        array = jnp.full(3, number, dtype)
        value = strategy.run(lambda: array * 1)
        if operation == "compiled before":
            value = mr.function(lambda: strategy.run(lambda: array * 1))()
    compute, factor = OPERATIONS[operation]
    for result in strategy.experimental_local_results(compute(strategy, value)):
        assert result.dtype == dtype
        np.testing.assert_allclose(np.asarray(result).ravel()[0], number * np.dtype(dtype).type(factor), rtol=1e-15)


@pytest.mark.parametrize("devices", ["one device", "four devices", "uneven"])
def test_the_mean_of_a_sync_on_read_variable_of_64_bits(devices: str, tmp_path: Path) -> None:
    """A checkpoint that was saved outside of 64-bit mode contained the mean in 32 bits."""
    strategy = strategies()[devices]
    with jax.enable_x64(True), strategy.scope():
        v, restored = (
            mr.Variable(np.full(3, value), synchronization="ON_READ", aggregation="MEAN") for value in (1 / 3, 0.0)
        )
    assert (v.numpy().dtype, v.read_value().dtype) == (np.float64, np.float64)
    np.testing.assert_allclose(v.numpy(), 1 / 3, rtol=1e-15)
    path = Checkpoint(v=v).save(str(tmp_path / "checkpoint"))
    Checkpoint(v=restored).restore(path)
    np.testing.assert_allclose(restored.numpy(), 1 / 3, rtol=1e-15)


def test_means_along_an_axis() -> None:
    strategy = strategies()["one device"]
    with jax.enable_x64(True):
        array = jnp.asarray([1 / 3, 1 / 3])
        value = strategy.run(lambda: array * 1)
    mean = strategy.reduce("MEAN", value, axis=0)
    assert mean.dtype == np.float64
    np.testing.assert_allclose(float(mean), 1 / 3, rtol=1e-15)


@pytest.mark.parametrize("dtype", VALUES)
def test_the_default_strategy_keeps_64_bits_along_an_axis(dtype: str) -> None:
    number = np.dtype(dtype).type(VALUES[dtype])
    with jax.enable_x64(True):
        array = jnp.full(3, number, dtype)
    total = mr.get_strategy().reduce("SUM", array, axis=0)
    assert total.dtype == dtype
    np.testing.assert_allclose(np.asarray(total), number * np.dtype(dtype).type(3), rtol=1e-15)


def test_arrays_of_32_bits_are_reduced_in_32_bits() -> None:
    strategy = strategies()["one device"]
    value = strategy.run(lambda: jnp.ones(3))
    assert strategy.reduce("MEAN", value, axis=0).dtype == np.float32
    assert strategy.gather(value, axis=0).dtype == np.float32


COMPILED = {
    "function": mr.function,
    "jit": jax.jit,
    "branch": lambda f: mr.function(lambda: jax.lax.cond(jnp.sum(jnp.ones(2)) > 1, f, f)),
    "loop": lambda f: mr.function(lambda: jax.lax.scan(lambda _, x: (f(), x), f(), jnp.ones(2))[0]),
}
CLOSED_OVER = {
    "reduce": lambda s, value: s.reduce("SUM", value, axis=None),
    "reduce an axis": lambda s, value: s.reduce("MEAN", value, axis=0),
    "custom": lambda s, value: s.reduce(lambda rows: rows.max(0), value, axis=None),
    "gather": lambda s, value: s.gather(value, axis=0),
    "run": lambda s, value: s.reduce("SUM", s.run(lambda x: 2 * x, args=(value,)), axis=None),
    "local results": lambda s, value: jnp.stack(s.experimental_local_results(value)),
}


@pytest.mark.first(16)
@pytest.mark.parametrize("operation", CLOSED_OVER)
@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("devices", [3, 1, 4])
def test_a_per_replica_value_that_a_compiled_function_closes_over(
    devices: int, deterministic: bool, compiled: str, operation: str
) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=4, deterministic=deterministic)
    rows = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    value = strategy.experimental_distribute_values_from_function(lambda c: rows[c.replica_id_in_sync_group])
    compute = lambda: CLOSED_OVER[operation](strategy, value)  # noqa: E731
    expected, found = np.asarray(compute()), np.asarray(COMPILED[compiled](compute)())
    if deterministic and compiled == "function":
        assert found.tobytes() == expected.tobytes()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_updates_by_a_per_replica_value_that_a_function_closes_over(deterministic: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2], deterministic=deterministic)
    with strategy.scope():
        v = mr.Variable(jnp.zeros(2))
        summed = mr.Variable(jnp.zeros(2), aggregation=mr.VariableAggregation.SUM)
        optimizer = mr.optimizers.SGD(1.0)
        optimizer.build([v])
    value = strategy.experimental_distribute_values_from_function(lambda c: jnp.ones(2) + c.replica_id_in_sync_group)
    mr.function(lambda: optimizer.apply_gradients([(value, v)]))()
    mr.function(lambda: summed.assign(value))()
    assert (v.numpy().tolist(), summed.numpy().tolist()) == ([-3.0, -3.0], [3.0, 3.0])
    assert mr.function(lambda: strategy.extended.reduce_to("SUM", value, v))().numpy().tolist() == [3.0, 3.0]


def test_a_collective_in_a_trace_is_not_an_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog asked the tracer that it returns whether it is ready, and printed the traceback."""
    labels: list[str] = []
    monkeypatch.setattr(stacked.collective_log, "arrive", lambda label, line: labels.append(label))
    monkeypatch.setattr(stacked.collective_log, "depart", lambda array: None)
    assignment: Any = SimpleNamespace(spans_processes=True)
    gather = lambda: stacked._logged("gather", assignment, lambda: jnp.ones(2) * 2)  # noqa: E731
    jax.make_jaxpr(gather)()
    assert labels == []
    gather()
    assert labels == ["gather"]
