"""Programs of `mirrored.function` are separate for per-replica arguments of different layouts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
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
