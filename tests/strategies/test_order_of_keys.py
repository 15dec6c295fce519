"""Functions that return the structure of their argument keep the order of the keys of its dicts.

JAX sorts the keys of rebuilt dicts. ``loss, accuracy = strategy.reduce("SUM", {"loss": l, "accuracy": a}).values()``
would exchange the two.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.tape.forward_accumulator import ForwardAccumulator


def jvp(strategy: Any, values: Any) -> Any:
    primal = jnp.ones(2)
    with ForwardAccumulator(primal, primal) as accumulator:
        results = {"loss": 2 * primal, "accuracy": [{"z": 3 * primal, "a": primal}]}
    return accumulator.jvp(results)


FUNCTIONS = {
    "reduce": lambda strategy, values: strategy.reduce("SUM", values, axis=None),
    "reduce along an axis": lambda strategy, values: strategy.reduce("SUM", values, axis=0),
    "gather": lambda strategy, values: strategy.gather(values, axis=0),
    "experimental_local_results": lambda strategy, values: strategy.experimental_local_results(values)[1],
    "reduce_to": lambda strategy, values: strategy.extended.reduce_to("SUM", values, "CPU:0"),
    "batch_reduce_to": lambda strategy, values: strategy.extended.batch_reduce_to("SUM", [(values, values["loss"])])[0],
    "jvp": jvp,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("devices", [1, 2])
def test_the_keys_are_in_the_order_of_the_argument(name: str, devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2)
    value = strategy.run(lambda: jnp.ones(2) * mr.get_replica_context().replica_id_in_sync_group)
    found = FUNCTIONS[name](strategy, {"loss": value, "accuracy": [{"z": value, "a": value}]})
    assert list(found) == ["loss", "accuracy"]
    assert list(found["accuracy"][0]) == ["z", "a"]
