"""Scopes and contexts: where code thinks it is, and what it may do there."""

from __future__ import annotations

import copy
import threading

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError, ContextError, DeviceError, MergeError
from strategies.programs import fid


@pytest.fixture
def two():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def state():
    context = mr.get_replica_context()
    kind = None if context is None else (context.num_replicas_in_sync, context.replica_id_in_sync_group)
    return kind, mr.in_cross_replica_context(), mr.has_strategy()


def test_contexts_outside_in_scope_in_run_and_in_a_merge(two):
    assert state() == ((1, 0), False, False)
    with two.scope():
        assert state() == (None, True, True)
        assert mr.get_strategy() is two
    seen, merged = [], []

    def replica():
        seen.append(state())
        mr.get_replica_context().merge_call(lambda strategy: merged.append((*state(), strategy is two)))

    two.run(replica)
    assert seen == [((2, 0), False, True), ((2, 1), False, True)]
    assert merged == [(None, True, True, True)]
    assert state() == ((1, 0), False, False)


def test_scope_gives_the_strategy_and_nests(two):
    with two.scope() as first, two.scope() as second:
        assert first is second is two
        assert isinstance(mr.Variable(1.0), mr.DistributedValues)
    assert not mr.has_strategy()


def test_a_scope_object_may_be_entered_again(two):
    scope = two.scope()
    with scope, scope:
        assert mr.get_strategy() is two
    assert not mr.has_strategy()


def test_a_replica_context_may_be_entered_again_and_in_several_threads(two):
    context = mr.get_replica_context()
    inside, left, seen = threading.Event(), threading.Event(), []

    def elsewhere():
        with context:
            inside.set()
            left.wait(10)
        seen.append(mr.get_replica_context())

    thread = threading.Thread(target=elsewhere)
    with two.scope():
        with context:
            thread.start()
            inside.wait(10)
            with context:
                assert mr.get_replica_context() is context
            assert mr.get_replica_context() is context
        assert mr.get_replica_context() is None
        left.set()
    thread.join()
    assert seen == [context]
    assert mr.get_strategy() is context.strategy


def test_an_exception_leaves_the_scope(two):
    with pytest.raises(KeyError, match="k"), two.scope():
        raise KeyError("k")
    assert not mr.has_strategy()


def test_strategies_are_not_mixed(two):
    other = mr.MirroredStrategy(["CPU:2", "CPU:3"])
    with two.scope():
        with pytest.raises(ContextError, match=r"Strategy\.scope: .* inside the scope of"):
            other.scope().__enter__()
        with pytest.raises(ContextError, match=r"Strategy\.run: .* inside the scope of"):
            other.run(lambda: 1)
    with pytest.raises(ContextError, match=r"Strategy\.scope: it was called inside a replica"):
        two.run(lambda: other.scope().__enter__())
    assert not mr.has_strategy()


def test_a_scope_belongs_to_its_thread(two):
    seen = []
    with two.scope():
        thread = threading.Thread(target=lambda: seen.append(mr.has_strategy()))
        thread.start()
        thread.join()
        assert mr.has_strategy()
    assert seen == [False]


def test_variables_in_and_out_of_scope(two):
    before = mr.Variable(1.0)
    with two.scope():
        inside = mr.Variable(1.0)
    after = mr.Variable(1.0)
    assert [isinstance(v, mr.DistributedValues) for v in (before, inside, after)] == [False, True, False]
    assert two.extended.variable_created_in_scope(inside)
    assert not two.extended.variable_created_in_scope(before)


def test_set_strategy_for_good(two):
    with two.scope(), pytest.raises(ContextError, match="it was called in the scope of"):
        mr.experimental_set_strategy(two)
    mr.experimental_set_strategy(two)
    try:
        assert state() == (None, True, True)
        assert isinstance(mr.Variable(1.0), mr.DistributedValues)
        with pytest.raises(ContextError, match="experimental_set_strategy"):
            two.run(lambda: mr.experimental_set_strategy(None))
    finally:
        mr.experimental_set_strategy(None)
    assert state() == ((1, 0), False, False)


def test_variable_creators_are_called_innermost_first(two):
    log = []

    def creator(label):
        def create(make, **kwargs):
            log.append((label, kwargs["name"], kwargs["initial_value"]))
            return make(**kwargs)

        return create

    with two.scope(), mr.variable_creator_scope(creator("outer")), mr.variable_creator_scope(creator("inner")):
        v = mr.Variable(1.0, name="v")
        w = two.run(lambda: mr.Variable(2.0, False, "w"))
    mr.Variable(3.0, name="z")
    assert log[:2] == [("inner", "v", 1.0), ("outer", "v", 1.0)]
    assert {entry[1] for entry in log[2:]} == {"w"}
    assert isinstance(v, mr.DistributedValues)
    assert not w.trainable


# Variables made in run


@pytest.mark.first(3)
@pytest.mark.ways(replicas=(2, 4))
def test_replicas_create_one_variable_together(way):
    made, traced = [], []

    def replica():
        if not traced:  # a compiled function is traced again without the creation
            made.append(mr.Variable(lambda: jax.random.normal(jax.random.key(7), (2,)), name="w"))
        return made[0]

    def step():
        v = way.strategy.run(replica)
        traced.append(True)
        return v

    if way.is_eager:
        v = step()
        assert isinstance(v, mr.DistributedValues)
    else:
        way.compile(step)()
        v = made[0]
    assert all(one is v for one in made)
    assert len({tuple(c.numpy().tolist()) for c in v.values}) == 1


@pytest.mark.ways(replicas=(4,))
def test_replicas_may_create_it_once_into_a_shared_place(way):
    box = []

    def replica():
        if not box:
            box.append(mr.Variable(2.0, aggregation="MEAN"))
        return box[0].assign_add(fid())

    step = way.compile(lambda: way.strategy.run(replica))
    step()
    step()
    assert len(box) == 1
    assert float(box[0]) == 2.0 + 2 * (way.num_replicas - 1) / 2


def test_several_variables_made_in_a_loop_keep_their_order(two):
    made = two.run(lambda: [mr.Variable(float(i), name=f"v{i}_{i}") for i in range(3)])
    assert [float(v) for v in made] == [0.0, 1.0, 2.0]
    assert [v.num_replicas for v in made] == [2, 2, 2]


def test_the_first_replicas_initial_value_counts(two):
    assert [c.numpy() for c in two.run(lambda: mr.Variable(fid() + 5.0)).values] == [5.0, 5.0]


def test_two_runs_create_two_variables(two):
    def replica():
        return mr.Variable(1.0)

    first, second = two.run(replica), two.run(replica)
    assert first is not second


def test_names_that_differ_are_refused(two):
    def replica(suffixes):
        rank = mr.get_replica_context().replica_id_in_sync_group
        return mr.Variable(1.0, name=f"p{suffixes[rank]}")

    assert two.run(replica, args=(("_1", "_2"),)).name == "p_1"
    with pytest.raises(MergeError, match="under the names 'pa' and 'pb'"):
        two.run(replica, args=("ab",))


def test_creating_a_variable_on_one_replica_only_is_refused(two):
    def replica():
        if mr.get_replica_context().replica_id_in_sync_group == 1:
            mr.Variable(1.0, name="late")

    with pytest.raises(MergeError, match="replica 1 creates variable 'late' at .* and replica 0 does not"):
        two.run(replica)


# Strategies as such


def test_properties(two):
    assert two.num_replicas_in_sync == 2
    assert two.cluster_resolver is None
    assert isinstance(two, mr.Strategy)
    assert repr(two) == "MirroredStrategy(DeviceAssignment(2 replicas on 2 devices: CPU:0 {0}, CPU:1 {1}))"
    assert copy.deepcopy({"strategy": two})["strategy"] is two


def test_all_devices_by_default():
    assert mr.MirroredStrategy().num_replicas_in_sync == jax.device_count()
    assert mr.MirroredStrategy([]).num_replicas_in_sync == jax.device_count()
    assert mr.MirroredStrategy(jax.devices()[:3]).num_replicas_in_sync == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": ["CPU:0", "/cpu:0"]}, "CPU:0"),
        ({"devices": ["CPU:99"]}, "CPU:99"),
        ({"devices": ["TPU:0"]}, "TPU"),
        ({"devices": "CPU:0"}, "the single device"),
        ({"devices": 2}, "devices=2"),
        ({"devices": ["CPU:0", "CPU:1"], "num_replicas": 1}, "num_replicas=1 on 2 devices"),
        ({"devices": ["CPU:0"], "num_replicas": 0}, "num_replicas=0"),
    ],
    ids=["twice", "unknown", "kind", "string", "number", "too few", "zero"],
)
def test_devices_that_do_not_fit(arguments, message):
    with pytest.raises(DeviceError, match=message):
        mr.MirroredStrategy(**arguments)


def test_options_that_do_not_fit():
    with pytest.raises(ArgumentError, match="cross_device_ops='nccl'"):
        mr.MirroredStrategy(["CPU:0"], "nccl")
    operations = mr.MirroredStrategy(["CPU:0"]).cross_device_ops
    with pytest.raises(ArgumentError, match="deterministic=True and cross_device_ops="):
        mr.MirroredStrategy(["CPU:0"], operations, deterministic=True)
    assert mr.MirroredStrategy(["CPU:0"], operations).cross_device_ops is operations
    assert mr.MirroredStrategy(["CPU:0"], deterministic=True).deterministic


def test_one_device_strategy():
    strategy = mr.OneDeviceStrategy("CPU:1")
    with strategy.scope():
        v = mr.Variable(1.0, aggregation="SUM")
    result = strategy.run(lambda x: v.assign_add(x), args=(jnp.float32(2.0),))
    assert float(result) == float(v) == 3.0
    assert result.devices() == {jax.devices()[1]}
    assert strategy.num_replicas_in_sync == 1
    with pytest.raises(DeviceError, match="CPU:77"):
        mr.OneDeviceStrategy("CPU:77")
