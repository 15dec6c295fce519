"""None is no value: what is None on all replicas stays None, and what is None on some of them cannot be combined."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

LAYOUTS = [(2, 2), (3, 2), (1, 1)]


def context():
    return mr.get_replica_context()


def merged(strategy, function):
    return lambda x: context().merge_call(lambda _, value: function(value), args=(x,))


# Each function maps a strategy and a distributed value to a result, in which an array stays where it was.
USES = {
    "reduce": lambda strategy, x: strategy.reduce("SUM", x, axis=None),
    "reduce along an axis": lambda strategy, x: strategy.reduce("MEAN", x, axis=0),
    "reduce_to": lambda strategy, x: strategy.extended.reduce_to("SUM", x, destinations="CPU:0"),
    "gather": lambda strategy, x: strategy.gather(x, axis=0),
    "run": lambda strategy, x: strategy.run(lambda x: x, args=(x,)),
    "all_reduce": lambda strategy, x: strategy.run(lambda x: context().all_reduce("SUM", x), args=(x,)),
    "all_gather": lambda strategy, x: strategy.run(lambda x: context().all_gather(x, 0), args=(x,)),
    "merge_call": lambda strategy, x: strategy.run(merged(strategy, lambda x: x), args=(x,)),
    "reduce in a merge": lambda strategy, x: strategy.run(
        merged(strategy, lambda x: strategy.reduce("SUM", x, axis=None)), args=(x,)
    ),
}
COMBINING = [name for name in USES if name not in ("run", "all_reduce", "merge_call")]


def made(devices, replicas, value_fn):
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=replicas)
    return strategy, strategy.experimental_distribute_values_from_function(value_fn)


@pytest.mark.first(6)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("replicas", "devices"), LAYOUTS)
@pytest.mark.parametrize("name", USES)
def test_keeps_what_is_none_on_all_replicas(name, replicas, devices, compiled):
    strategy, x = made(devices, replicas, lambda context: [None, {"a": jnp.ones(2), "b": None}])
    assert x[0] is None
    assert x[1]["b"] is None

    def use(x):
        return USES[name](strategy, x)

    result = (mr.function(use) if compiled else use)(x)
    assert result[0] is None
    assert list(result[1]) == ["a", "b"]
    assert result[1]["b"] is None
    assert result[1]["a"] is not None


@pytest.mark.parametrize("name", ["reduce", "reduce along an axis", "reduce_to", "gather"])
def test_explicit_components_of_none_are_none(name):
    strategy, _ = made(2, 2, lambda context: None)
    assert USES[name](strategy, mr.PerReplica([None, None])) is None


@pytest.mark.first(6)
@pytest.mark.parametrize(("replicas", "devices"), [(2, 2), (3, 2)])
@pytest.mark.parametrize("name", COMBINING)
def test_refuses_to_combine_what_is_none_on_some_replicas(name, replicas, devices):
    strategy, x = made(
        devices, replicas, lambda context: None if context.replica_id_in_sync_group == 1 else jnp.ones(2)
    )
    with pytest.raises(mr.errors.StructureError, match="None") as raised:
        USES[name](strategy, x)
    assert "rule:" in str(raised.value)
    assert "remedy:" in str(raised.value)
    np.testing.assert_array_equal(USES["all_reduce"](strategy, x).values[0], [replicas - 1.0] * 2)  # zeros, documented


@pytest.mark.parametrize("use", ["apply_gradients", "assign"])
@pytest.mark.parametrize("others", [None, 1.0], ids=["all", "some"])
def test_names_gradients_and_assigned_values_of_none(use, others):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w, u = mr.Variable(1.0, aggregation=mr.VariableAggregation.MEAN), mr.Variable(1.0)
        optimizer = mr.optimizers.SGD(0.5)
    value = mr.PerReplica([None, others if others is None else jnp.float32(others)])

    def used():
        return w.assign(value) if use == "assign" else optimizer.apply_gradients([(value, w), (jnp.ones(()), u)])

    if use == "apply_gradients" and others is None:
        with pytest.warns(UserWarning, match="no gradient"):
            used()
        assert (float(w), float(u)) == (1.0, 0.5)
        return
    with pytest.raises(mr.errors.MirroredError, match="None") as raised:
        used()
    assert "remedy:" in str(raised.value)


def mixed(x):
    return {"b": x, 1: x, (2, "x"): x}


KEYED = {
    "distribute": lambda strategy, x: strategy.experimental_distribute_values_from_function(lambda context: mixed(1.0)),
    "argument of run": lambda strategy, x: strategy.run(lambda x: 1.0, args=([mixed(x)],)),
    "result of run": lambda strategy, x: strategy.run(mixed, args=(x,)),
    "reduce": lambda strategy, x: strategy.reduce("SUM", mixed(x), axis=None),
    "gather": lambda strategy, x: strategy.gather(mixed(x), axis=0),
    "all_reduce": lambda strategy, x: strategy.run(lambda x: context().all_reduce("SUM", mixed(x)), args=(x,)),
    "all_gather": lambda strategy, x: strategy.run(lambda x: context().all_gather(mixed(x), 0), args=(x,)),
    "argument of merge_call": lambda strategy, x: strategy.run(
        lambda x: context().merge_call(lambda strategy, x: 1.0, args=(mixed(x),)), args=(x,)
    ),
    "result of merge_call": lambda strategy, x: strategy.run(
        lambda x: context().merge_call(lambda strategy, x: mixed(x), args=(x,)), args=(x,)
    ),
    "local results": lambda strategy, x: strategy.experimental_local_results(mixed(x)),
    "function argument": lambda strategy, x: mr.function(lambda x: 1.0)(mixed(jnp.ones(2))),
    "function result": lambda strategy, x: mr.function(mixed)(x),
    "gradient": lambda strategy, x: mr.GradientTape().gradient(jnp.ones(()), mixed(jnp.ones(2))),
    "mirror": lambda strategy, x: mr.mirror(mixed(jnp.ones(2))),
    "aggregate_gradients": lambda strategy, x: mr.aggregate_gradients([mixed(jnp.ones(2))]),
    "build": lambda strategy, x: mr.optimizers.SGD(0.1).build(mixed(jnp.ones(2))),
}


INLINED = ("function argument", "function result")  # in a compiled function, which calls the Python function
CASES = [(name, compiled) for compiled in (False, True) for name in KEYED if not (compiled and name in INLINED)]


@pytest.mark.first(8)
@pytest.mark.parametrize(("name", "compiled"), CASES)
def test_refuses_dicts_whose_keys_cannot_be_sorted(name, compiled):
    strategy, x = made(2, 2, lambda context: jnp.ones(2))

    def use(x):
        KEYED[name](strategy, x)

    with pytest.raises(mr.errors.StructureError, match=r"a dict has the keys 'b', 1, \(2, 'x'\)") as raised:
        (mr.function(use) if compiled else use)(x)
    assert "remedy:" in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)
