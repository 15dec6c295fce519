"""Programs of `mirrored.function` are separate for per-replica arguments of different layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


def numbered(devices: int, replicas: int) -> Any:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    return strategy.run(mr.function(lambda: jnp.float32(mr.get_replica_context().replica_id_in_sync_group) + 1.0))


@pytest.mark.first(1)
@pytest.mark.parametrize("nested", [False, True], ids=["argument", "in a tuple"])
def test_values_with_equally_many_rows(nested: bool) -> None:
    """4 replicas on 3 devices have 6 rows, two of them empty; the sum of 6 replicas on them was that of 4 rows."""
    total = mr.function(lambda x: sum((x[0] if nested else x).values))
    for replicas in (4, 6, 4, 6):
        value = numbered(3, replicas)
        assert float(total((value,) if nested else value)) == replicas * (replicas + 1) / 2
    assert total.trace_count == 2
    assert "holds the values of other replicas" in total.retrace_reason


def test_devices_in_another_order() -> None:
    devices = jax.devices()[:2]
    same = mr.function(lambda x: x)
    for order in (devices, devices[::-1]):
        strategy = mr.MirroredStrategy(order)
        value = strategy.run(mr.function(lambda: jnp.float32(mr.get_replica_context().replica_id_in_sync_group)))
        result = same(value)
        assert [float(one) for one in result.values] == [0.0, 1.0]
        assert result.device_assignment == strategy.device_assignment


def test_mirrored_values_of_other_numbers_of_replicas() -> None:
    total = mr.function(lambda x: sum(getattr(x, "values", (x,))))
    assert [float(total(mr.Mirrored(jnp.asarray(1.0), n))) for n in (2, 4)] == [2.0, 4.0]
    assert float(total(jnp.asarray(1.0))) == 1.0


@pytest.mark.parametrize(
    "components",
    [
        lambda: [jnp.float32(1), jnp.float32(2)],
        lambda: [np.float32(1), np.ones(3, "f4")],
        lambda: [jax.device_put(np.float32(k), device) for k, device in enumerate(jax.devices()[:2])],
        lambda: [1.0, "text"],
        lambda: [[1.0], {"a": 2}],
    ],
    ids=["arrays", "shapes differ", "committed to several devices", "static", "containers"],
)
def test_values_without_devices_are_traced_once(components: Callable[[], Any]) -> None:
    """Each new value had a key of its own, so each step of a loop was traced."""
    first = mr.function(lambda x: (x, x.values[0]))
    for _ in range(3):
        value = mr.PerReplica(components())
        same, one = first(value)
    assert first.trace_count == 1
    for got, wanted in zip((*same.values, one), (*value.values, value.values[0]), strict=True):
        assert got == wanted if isinstance(wanted, (str, list, dict)) else np.array_equal(got, wanted)


def test_the_components_of_values_without_devices_are_arguments() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4)
    total = mr.function(lambda x: strategy.reduce("SUM", strategy.run(lambda one: 2 * one, args=(x,)), axis=None))
    for start in (0, 10):
        value = mr.PerReplica([np.float32(start + k) for k in range(4)])
        assert float(total(value)) == 8 * start + 12
    assert total.trace_count == 1
    with strategy.scope():
        assert float(total(value)) == 92.0


def test_gradients_flow_to_the_components_of_values_without_devices() -> None:
    square = mr.function(lambda x: x.values[0] * x.values[1])
    one = jnp.float32(3)
    with mr.GradientTape() as tape:
        tape.watch(one)
        result = square(mr.PerReplica([one, 2 * one]))
    assert float(tape.gradient(result, one)) == 12.0


def test_a_retrace_for_other_components_says_which() -> None:
    same = mr.function(lambda x: x)
    for number in (1.0, 2.0):
        assert same(mr.PerReplica([jnp.float32(0), number])).values[1] == number
    assert same.retrace_reason == (
        "<lambda> is traced again: argument [0][<flat index 1>] changed from 1.0 to 2.0; a Python number is part of "
        "the program: pass jnp.asarray(2.0)"
    )


@pytest.mark.parametrize("make", [lambda one: mr.Mirrored(one, 2), lambda one: mr.PerReplica([one, [1]])])
def test_a_retrace_for_another_object_shows_the_values(make: Callable[[Any], Any]) -> None:
    length = mr.function(lambda x: len(x.values))
    old, new = make("old"), make("new")
    length(old), length(new)
    assert length.retrace_reason == f"<lambda> is traced again: argument [0] changed from {old!r} to {new!r}"


def test_the_steps_of_one_call_take_values_without_devices() -> None:
    last = mr.function(lambda x: x.values[1], steps_per_call=2)
    batches = [mr.PerReplica([np.float32(k), np.float32(k + 1)]) for k in range(2)]
    assert last(batches).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("value", [3.0, "text", (1, 2.0)])
def test_mirrored_objects_are_compared_by_their_values(value: object) -> None:
    same = mr.function(lambda x: x.value)
    assert [same(mr.Mirrored(value, 2)) for _ in range(3)] == [value] * 3
    assert same.trace_count == 1


def test_mirrored_scalars_of_numpy_are_arguments() -> None:
    double = mr.function(lambda x: 2 * x)
    assert [float(double(mr.Mirrored(np.float32(k), 2))) for k in range(3)] == [0.0, 2.0, 4.0]
    assert double.trace_count == 1
