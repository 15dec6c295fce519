"""The dtype of a reduction depends on the operation and the dtype of the components, not on the number of replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import ReduceOp
from mirrored.collectives import Median
from mirrored.errors import ArgumentError
from mirrored.testing.ways import Way
from strategies.programs import rid

_NUMBERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64")

_fewer = pytest.mark.ways(modes=("eager", "compiled", "folded"), replicas=(1, 2))


def _forms(strategy: Any, op: Any, value: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """Every way to reduce what the replicas compute."""
    context = mr.get_replica_context

    def merged(axis: Any) -> Any:
        def merge(strategy: Any, x: Any) -> Any:
            return strategy.reduce(op, x, axis=axis)

        return strategy.local_results(strategy.run(lambda: context().merge_call(merge, (value(),))))[0]

    return {
        "axis=None": lambda: strategy.reduce(op, strategy.run(value), axis=None),
        "axis=0": lambda: strategy.reduce(op, strategy.run(value), axis=0),
        "axis=(0,)": lambda: strategy.reduce(op, strategy.run(value), axis=(0,)),
        "reduce_to": lambda: strategy.extended.reduce_to(op, strategy.run(value), "CPU:0"),
        "all_reduce": lambda: strategy.local_results(strategy.run(lambda: context().all_reduce(op, value())))[0],
        "merge_call": lambda: merged(None),
        "merge_call, axis=0": lambda: merged(0),
    }


@pytest.mark.parametrize("op", ["SUM", "MEAN", Median()], ids=str)
@_fewer
@pytest.mark.sampled(3)
@pytest.mark.first(2)
def test_result_dtypes(way: Way, op: Any) -> None:
    dtypes = [dtype for dtype in _NUMBERS if dtype != "complex64" or isinstance(op, str)]

    def results_of(x: Any) -> Any:
        forms = _forms(way.strategy, op, lambda: x * 1)
        # A custom reduction is refused along an axis.
        named = [name for name in forms if isinstance(op, str) or "0" not in name]
        return {name: forms[name]() for name in named}

    def step(values: Any) -> Any:
        return {dtype: results_of(x) for dtype, x in values.items()}

    # The values are arguments: XLA for CPU aborts when it folds a complex constant.
    for dtype, results in way.compile(step)({dtype: jnp.ones(2, dtype) for dtype in dtypes}).items():
        expected = "float32" if op == "MEAN" and jnp.issubdtype(dtype, jnp.integer) else dtype
        assert {name: str(result.dtype) for name, result in results.items()} == dict.fromkeys(results, expected)
        one = results["all_reduce"]
        assert np.asarray(one).astype("complex64").tolist() == [way.num_replicas if op == "SUM" else 1] * 2


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_the_mean_of_integers_does_not_overflow(num_replicas: int) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=num_replicas)
    assert float(strategy.reduce("MEAN", strategy.run(lambda: jnp.int32(100_000)), axis=None) * 100_000) == 1e10


@_fewer
def test_an_integer_sum_along_an_axis_wraps_around(way: Way) -> None:
    def step() -> Any:
        return way.strategy.reduce("SUM", way.strategy.run(lambda: jnp.asarray([200, 100], jnp.uint8)), axis=0)

    assert int(way.compile(step)()) == 300 * way.num_replicas % 256


def _default() -> Any:
    return mr.get_strategy()


def _one_device() -> Any:
    return mr.OneDeviceStrategy("CPU:0")


@pytest.mark.parametrize("strategy_of", [_default, _one_device], ids=["default", "one device"])
def test_other_strategies_have_the_same_dtypes(strategy_of: Callable[[], Any]) -> None:
    strategy = strategy_of()
    for name, reduce in _forms(strategy, "MEAN", lambda: jnp.ones(2, jnp.int16)).items():
        assert reduce().dtype == jnp.float32, name
    for name, reduce in _forms(strategy, "SUM", lambda: jnp.ones(2, jnp.int16)).items():
        assert reduce().dtype == jnp.int16, name
    for name, reduce in _forms(strategy, "SUM", lambda: jnp.ones(2, bool)).items():
        with pytest.raises(ArgumentError, match="booleans have no sum and no mean"):
            pytest.fail(f"{name} returned {reduce()}")


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_values_that_are_equal_on_all_replicas(num_replicas: int) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=num_replicas)
    for value in (3, np.int16(3), jnp.int32(3), mr.Mirrored(jnp.int32(3), num_replicas)):
        mean = strategy.reduce("MEAN", value, axis=None)
        assert (mean.dtype, float(mean)) == (jnp.float32, 3.0)
    with pytest.raises(ArgumentError, match="booleans have no sum and no mean"):
        strategy.reduce("MEAN", True, axis=None)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: jnp.asarray([True, rid() == 0]), "booleans have no sum and no mean"),
        (lambda: jax.random.split(jax.random.key(rid()), 2), "keys have no sum and no mean"),
    ],
    ids=["booleans", "keys"],
)
@_fewer
@pytest.mark.first(3)
def test_what_cannot_be_added_is_refused(way: Way, value: Callable[[], Any], message: str, op: str) -> None:
    for name, reduce in _forms(way.strategy, op, value).items():
        with pytest.raises(ArgumentError, match=message):
            pytest.fail(f"{name} returned {way.compile(reduce)()}")


@pytest.mark.parametrize(("op", "expected"), [(lambda stacked: stacked[0], 0), (lambda stacked: stacked[-1], -1)])
@_fewer
def test_custom_reductions_of_keys_and_booleans(way: Way, op: Callable[[Any], Any], expected: int) -> None:
    def step() -> Any:
        keys = way.strategy.run(lambda: jax.random.key(rid()))
        flags = way.strategy.run(lambda: jnp.asarray(rid() == 0))
        inside = way.strategy.run(lambda: mr.get_replica_context().all_reduce(op, jax.random.key(rid())))
        chosen = way.strategy.reduce(op, keys, axis=None), way.strategy.local_results(inside)[0]
        return [jax.random.key_data(key) for key in chosen], way.strategy.reduce(op, flags, axis=None)

    keys, flag = way.compile(step)()
    replica = expected % way.num_replicas
    for key in keys:
        assert key.tolist() == jax.random.key_data(jax.random.key(replica)).tolist()
    assert (flag.dtype, bool(flag)) == (jnp.bool_, replica == 0)


@pytest.mark.long
def test_members_keep_the_dtype() -> None:
    assert ReduceOp.SUM(jnp.ones((2, 3), jnp.int16)).dtype == jnp.int16
    assert ReduceOp.MEAN(jnp.ones((2, 3), jnp.int16)).dtype == jnp.float32
    with pytest.raises(ArgumentError, match="booleans have no sum"):
        ReduceOp.SUM(jnp.ones((2, 3), bool))
