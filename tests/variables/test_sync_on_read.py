"""Sync-on-read variables: one component per replica, aggregated when read in cross-replica context."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import VariableAggregation, VariableSynchronization
from mirrored.errors import ArgumentError, ContextError, VariableError

few = pytest.mark.ways(replicas=(4,))
READABLE = [VariableAggregation.SUM, VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA]


def make(way, value, aggregation, **options):
    with way.strategy.scope():
        return mr.Variable(
            value, synchronization=VariableSynchronization.ON_READ, aggregation=aggregation, name="m", **options
        )


def ranks(way):
    return way.strategy.distribute_values_from_function(lambda c: jnp.float32(c.replica_id_in_sync_group + 1))


def components(way, value):
    return [np.asarray(component).tolist() for component in way.strategy.local_results(value)]


def aggregated(aggregation, values):
    return {"SUM": sum(values), "MEAN": sum(values) / len(values), "ONLY_FIRST_REPLICA": values[0]}[aggregation.name]


def run(way, f, *args):
    return way.compile(lambda *a: way.strategy.run(f, args=a))(*args)


def test_options():
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        v = mr.Variable(1.0, synchronization="ON_READ", aggregation="SUM")
        with pytest.raises(ArgumentError, match="the mean of integers is not an integer"):
            mr.Variable(0, synchronization="ON_READ", aggregation="MEAN")
    assert not v.trainable
    assert v.per_replica
    assert repr(v).startswith("SyncOnReadVariable:{\n  0: <Variable ")


@pytest.mark.parametrize("aggregation", list(VariableAggregation), ids=lambda a: a.name)
@few
def test_each_replica_has_its_own_component(way, aggregation):
    v = make(way, 1.0, aggregation)

    def replica(x):
        v.assign(3 * x)
        v.assign_add(x)
        new = v.assign_sub(1.0)
        return jnp.asarray(new), v.read_value(), v.value(), v + 1.0

    new, read, value, plus = run(way, replica, ranks(way))
    mine = [4.0 * (r + 1) - 1.0 for r in range(way.num_replicas)]
    assert components(way, new) == components(way, read) == components(way, value) == components(way, v) == mine
    assert components(way, plus) == [x + 1.0 for x in mine]
    if aggregation is not VariableAggregation.NONE:
        assert float(v) == aggregated(aggregation, mine)


@pytest.mark.parametrize("aggregation", READABLE, ids=lambda a: a.name)
@few
def test_cross_replica_reads_aggregate_inside_the_step_too(way, aggregation):
    v = make(way, [0.0, 0.0], aggregation)

    @way.compile
    def step(x):
        way.strategy.run(lambda y: v.assign_add(jnp.stack([y, 2 * y])), args=(x,))
        return v.read_value(), v * 2.0

    read, twice = step(ranks(way))
    ids = [r + 1.0 for r in range(way.num_replicas)]
    expected = [aggregated(aggregation, ids), aggregated(aggregation, [2 * i for i in ids])]
    assert read.tolist() == v.numpy().tolist() == expected
    assert twice.tolist() == [2 * e for e in expected]


@pytest.mark.parametrize("aggregation", READABLE, ids=lambda a: a.name)
@few
def test_reads_in_a_merge_aggregate(way, aggregation):
    v = make(way, 0.0, aggregation)

    def replica(x):
        v.assign(x)
        return mr.get_replica_context().merge_call(lambda strategy: v.read_value()) + x

    ids = [r + 1.0 for r in range(way.num_replicas)]
    expected = [aggregated(aggregation, ids) + i for i in ids]
    assert components(way, run(way, replica, ranks(way))) == expected


@few
def test_sum_divides_what_is_assigned_outside_run(way):
    v = make(way, 1.0, VariableAggregation.SUM)
    assert float(way.compile(lambda: v.assign(6.0))()) == 6.0
    assert components(way, v) == [6.0 / way.num_replicas] * way.num_replicas
    assert float(v) == 6.0


@pytest.mark.parametrize("in_merge", [False, True])
@pytest.mark.parametrize("one_each", [False, True])
@pytest.mark.ways(replicas=(1, 2))
def test_a_lost_variable_can_be_assigned_in_cross_replica_context(way, in_merge, one_each):
    v = make(way, 1.0, VariableAggregation.SUM)
    values = ranks(way)
    v.lose("it was donated")

    def assign(_strategy, x):
        v.assign(x if one_each else 6.0, read_value=False)

    def replica(x):
        mr.get_replica_context().merge_call(assign, args=(x,))
        return v + x  # on the device of the replica

    if in_merge:
        run(way, replica, values)
    else:
        way.compile(lambda x: assign(None, x))(values)
    total = sum(range(1, way.num_replicas + 1)) if one_each else 6.0
    assert float(v) == total


@few
def test_integer_sum_divides_with_nothing_lost(way):
    v = make(way, 0, VariableAggregation.SUM)
    way.compile(lambda: v.assign(7))()
    assert int(v) == 7
    assert max(components(way, v)) - min(components(way, v)) <= 1


@pytest.mark.parametrize("aggregation", READABLE[1:], ids=lambda a: a.name)
@few
def test_others_assign_to_every_component(way, aggregation):
    v = make(way, 1.0, aggregation)

    @way.compile
    def step():
        v.assign(8.0)
        v.assign_add(3.0)
        return v.assign_sub(0.5)

    assert float(step()) == 10.5
    assert components(way, v) == [10.5] * way.num_replicas


@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
@few
def test_sum_cannot_add_outside_run(way, method):
    v = make(way, 1.0, VariableAggregation.SUM)
    with pytest.raises(VariableError, match=r"aggregation SUM, in cross-replica context"):
        way.compile(lambda: getattr(v, method)(1.0))()
    assert components(way, v) == [1.0] * way.num_replicas


@few
def test_aggregation_none_cannot_be_read_or_assigned_outside_run(way):
    v = make(way, 1.0, VariableAggregation.NONE)
    with pytest.raises(VariableError, match="sync-on-read variable 'm' with aggregation NONE"):
        way.compile(lambda: v.read_value())()
    with pytest.raises(VariableError, match="aggregation NONE, in cross-replica context"):
        way.compile(lambda: v.assign(2.0))()
    assert components(way, v) == [1.0] * way.num_replicas


@pytest.mark.parametrize("aggregation", list(VariableAggregation), ids=lambda a: a.name)
@few
def test_per_replica_values_reach_their_components(way, aggregation):
    v = make(way, 10.0, aggregation)

    @way.compile
    def step(x):
        v.assign(x)
        v.assign_add(x)

    step(ranks(way))
    assert components(way, v) == [2.0 * (r + 1) for r in range(way.num_replicas)]


@few
def test_accumulate_and_reset(way):
    total, count = make(way, 0.0, VariableAggregation.SUM), make(way, 0, VariableAggregation.SUM)

    def replica(x):
        total.assign_add(x)
        count.assign_add(1)

    step = way.compile(lambda x: way.strategy.run(replica, args=(x,)))
    for _ in range(2):
        step(ranks(way))
        step(ranks(way))
        assert float(total / count) == (way.num_replicas + 1) / 2
        assert int(count) == 2 * way.num_replicas
        total.assign(0.0)
        count.assign(0)
        assert float(total) == int(count) == 0


@few
def test_reduce_takes_the_components(way):
    v = make(way, 0.0, VariableAggregation.NONE)
    run(way, lambda x: v.assign(x, read_value=False), ranks(way))
    n = way.num_replicas
    assert float(way.compile(lambda: way.strategy.reduce("SUM", v, axis=None))()) == n * (n + 1) / 2
    assert float(way.strategy.reduce("MEAN", v, axis=None)) == (n + 1) / 2


@few
def test_update_reaches_every_component(way):
    v = make(way, 1.0, VariableAggregation.SUM)
    way.compile(lambda: way.strategy.extended.update(v, lambda var, x: var.assign(x, read_value=False), args=(5.0,)))()
    assert components(way, v) == [5.0] * way.num_replicas
    assert float(v) == 5.0 * way.num_replicas


@pytest.mark.ways(replicas=(1,))
def test_one_replica(way):
    v = make(way, 1.0, VariableAggregation.SUM)
    run(way, lambda: v.assign_add(2.0))
    assert float(v) == 3.0
    v.assign(6.0)
    assert components(way, v) == [6.0]


@few
def test_components_survive_an_error(way):
    v = make(way, 1.0, VariableAggregation.SUM)

    def replica(x):
        v.assign(x)
        raise KeyError("later")

    with pytest.raises(KeyError, match="later"):
        run(way, replica, ranks(way))
    assert components(way, v) == [1.0] * way.num_replicas


def test_custom_aggregation_of_components():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(0.0, synchronization="ON_READ", aggregation=lambda stacked: jnp.max(stacked, axis=0))
    strategy.run(lambda: v.assign(10.0 * mr.get_replica_context().replica_id_in_sync_group))
    assert float(v) == 10.0
    assert float(mr.function(lambda: v + 1.0)()) == 11.0


# One component


@pytest.mark.first(22)
@pytest.mark.parametrize("aggregation", ["MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("method", ["assign", "assign_add"])
def test_a_merge_assigns_an_array_of_all_devices(way, method, aggregation):
    with way.strategy.scope():
        v = mr.Variable(0.0, synchronization="ON_READ", aggregation=aggregation)

    def replica():
        def merged(strategy, own):
            getattr(v, method)(strategy.reduce("SUM", own, axis=None))

        mr.get_replica_context().merge_call(merged, args=(jnp.float32(1.0),))

    way.compile(lambda: way.strategy.run(replica))()
    assert [float(one) for one in v.values] == [way.num_replicas] * way.num_replicas


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("method", ["assign", "assign_add"])
def test_a_component_takes_an_array_of_any_device(device, method):
    with mr.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        v = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    getattr(v.values[1], method)(jax.device_put(jnp.float32(4.0), jax.devices()[device]))
    assert [float(one) for one in v.values] == [0.0, 4.0]


def test_assigning_one_component():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(1.0, synchronization="ON_READ", aggregation="SUM", name="m")
        w = mr.Variable(1.0, name="w")
    assert float(v.values[1].assign(5.0)) == 5.0
    v.values[1].assign_add(1.0)
    mr.function(lambda: v.values[0].assign_sub(0.5))()
    assert [float(component) for component in v.values] == [0.5, 6.0]
    assert v.values[1].container is v
    with pytest.raises(VariableError, match=r"w/replica_1\.assign: [\s\S]*no single copy can be assigned"):
        w.values[1].assign(2.0)
    with pytest.raises(ContextError, match=r"m/replica_1\.assign_add: [\s\S]*inside run"):
        strategy.run(lambda: v.values[1].assign_add(2.0))
    with pytest.raises(VariableError, match=r"the value has shape \(2,\)"):
        v.values[0].assign([1.0, 2.0])
    assert [float(component) for component in v.values] == [0.5, 6.0]
    assert float(w) == 1.0


@pytest.mark.long
def test_components_are_variables_to_look_at():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable([1.0, 2.0], name="w:0")
    second = v.values[1]
    assert isinstance(second, mr.Variable)
    assert (second.name, second.shape, str(second.dtype), second.ndim) == ("w/replica_1:0", (2,), "float32", 1)
    assert second.device.endswith("CPU:1")
    assert second.trainable
    assert second.aggregation is VariableAggregation.NONE
    assert second.synchronization is VariableSynchronization.ON_WRITE
    assert (second + np.ones(2, np.float32)).tolist() == [2.0, 3.0]
    assert jnp.sum(second).tolist() == 3.0
    assert second.numpy().tolist() == [1.0, 2.0]
    assert "'w/replica_1:0'" in repr(second)
