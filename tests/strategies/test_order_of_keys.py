"""Dicts keep the order of their keys: in functions, runs, their results, and functions that return a structure.

JAX sorts the keys of rebuilt dicts. ``loss, accuracy = strategy.reduce("SUM", {"loss": l, "accuracy": a}).values()``
would exchange the two.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

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


def _merged(values: Any) -> Any:
    context = mr.get_replica_context()
    return context.merge_call(lambda _, merged: merged, args=(values,))


REPLICA_FUNCTIONS = {
    "the argument": lambda values: values,
    "a new dict": lambda values: {"loss": values["loss"] * 2, "accuracy": values["accuracy"]},
    "merge_call": _merged,
    "a custom gradient": lambda values: mr.custom_gradient(lambda given: (given, lambda *g: g))(values),
    "stop_gradient": mr.stop_gradient,
}
WAYS = {
    "eager": lambda strategy, fn: lambda values: strategy.run(fn, (values,)),
    "compiled": lambda strategy, fn: mr.function(lambda values: strategy.run(fn, (values,))),
    "compiled inside": lambda strategy, fn: lambda values: strategy.run(mr.function(fn), (values,)),
    "with keywords": lambda strategy, fn: (
        lambda values: strategy.run(lambda *, later, earlier: fn(later), kwargs={"later": values, "earlier": 1.0})
    ),
}


def _assert_unsorted(values: Any) -> None:
    assert list(values) == ["loss", "accuracy"]
    assert list(values["accuracy"][0]) == ["z", "a"]


@pytest.mark.parametrize("called", WAYS)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", REPLICA_FUNCTIONS)
@pytest.mark.first(20)
def test_replica_functions_and_their_results_have_the_order_of_insertion(name: str, devices: int, called: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2)

    def replica_fn(values: Any) -> Any:
        _assert_unsorted(values)
        result = REPLICA_FUNCTIONS[name](values)
        _assert_unsorted(result)
        return result

    value = strategy.run(lambda: jnp.ones(2) * mr.get_replica_context().replica_id_in_sync_group)
    call = WAYS[called](strategy, replica_fn)
    for _ in range(2):
        _assert_unsorted(call({"loss": value, "accuracy": [{"z": value, "a": jnp.ones(2)}]}))


@pytest.mark.parametrize("compiled", [False, True])
def test_declared_results_have_the_order_of_insertion(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    def step() -> Any:
        return strategy.run(lambda: {"z": jnp.ones(()), "a": [{"y": 1.0, "b": jnp.ones(2)}]}, out_specs=PartitionSpec())

    result = (mr.function(step) if compiled else step)()
    assert list(result) == ["z", "a"]
    assert list(result["a"][0]) == ["y", "b"]


@pytest.mark.parametrize("eager", [False, True])
def test_the_results_of_several_steps_have_the_order_of_insertion(eager: bool) -> None:
    step = mr.function(lambda batch: {"z": batch["z"], "a": batch["a"]}, steps_per_call=2)
    batches = [{"z": jnp.ones(2), "a": jnp.zeros(2)}] * 2
    mr.config.run_functions_eagerly(eager)
    try:
        result = step(batches)
    finally:
        mr.config.run_functions_eagerly(False)
    assert list(result) == ["z", "a"]
    assert result["z"].tolist() == [[1, 1], [1, 1]]


def test_each_order_of_keys_has_a_program_that_pairs_values_with_their_keys() -> None:
    twice = mr.function(lambda values: {key: 2 * value for key, value in values.items()})
    assert {key: int(value) for key, value in twice({"z": jnp.int32(1), "a": jnp.int32(2)}).items()} == {"z": 2, "a": 4}
    other = twice({"a": jnp.int32(2), "z": jnp.int32(1)})
    assert [(key, int(value)) for key, value in other.items()] == [("a", 4), ("z", 2)]
    assert twice.trace_count == 2


def test_values_of_the_replicas_have_the_order_of_insertion() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    values = strategy.experimental_distribute_values_from_function(lambda _: {"z": jnp.ones(()), "a": jnp.ones(())})
    assert list(values) == ["z", "a"]


def test_mirror_and_unmirror_keep_the_order_of_insertion() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        params = mr.mirror({"layer_2": {"w": jnp.ones(2), "b": jnp.ones(2)}, "layer_10": jnp.ones(2)})
    for tree in (params, mr.unmirror(params), mr.function(lambda: mr.unmirror(params))()):
        assert list(tree) == ["layer_2", "layer_10"]
        assert list(tree["layer_2"]) == ["w", "b"]
