"""Mirrored variables: one value on all replicas, in every context and with every aggregation."""

from __future__ import annotations

import gc
import operator
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import ReduceOp, VariableAggregation
from mirrored.errors import ArgumentError, ContextError, OutOfScopeWarning, ReplicaDivergenceError, VariableError
from mirrored.runtime.variable_store import FunctionStore
from mirrored.testing import assert_same_bits
from mirrored.variables import assigned
from mirrored.variables.slicing import Slice

AGGREGATIONS = list(VariableAggregation)
few = pytest.mark.ways(replicas=(4,))


def replica_id():
    return mr.get_replica_context().replica_id_in_sync_group


def make(way, value, **options):
    with way.strategy.scope():
        return mr.Variable(value, **options)


def components(way, value):
    return [np.asarray(component).tolist() for component in way.strategy.local_results(value)]


def ranks(way):
    """A per-replica value: 1.0 on the first replica, 2.0 on the second, ..."""
    return way.strategy.distribute_values_from_function(lambda c: jnp.float32(c.replica_id_in_sync_group + 1))


def combined(aggregation, n):
    """What 1.0, 2.0, ..., n become together."""
    return {
        VariableAggregation.SUM: n * (n + 1) / 2,
        VariableAggregation.MEAN: (n + 1) / 2,
        VariableAggregation.ONLY_FIRST_REPLICA: 1.0,
    }[aggregation]


# Cross-replica context


@pytest.mark.ways(modes=("eager", "folded"), replicas=(1, 2, 4))
def test_copies_are_equal_and_lie_on_their_replicas_devices(way):
    v = make(way, [1.0, 2.0], name="w")
    assert isinstance(v, mr.DistributedValues)
    assert isinstance(v, mr.Variable)
    assert components(way, v) == [[1.0, 2.0]] * way.num_replicas
    layout = way.strategy.device_assignment
    assert [copy.read_value().devices() for copy in v.values] == [
        {layout.device_of(replica)} for replica in range(way.num_replicas)
    ]
    assert [copy.device for copy in v.values] == [layout.name_of(r) for r in range(way.num_replicas)]


def test_repr_of_prng_keys_shows_their_data():
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        shown = repr(mr.Variable(jax.random.key(3), name="k"))
    assert shown.count("[0 3]") == 2


@pytest.mark.ways(modes=("eager",), replicas=(2,))
def test_repr_keeps_tensorflows_outline(way):
    lines = repr(make(way, 1.0, name="w")).split("\n")
    assert lines[0] == "MirroredVariable:{"
    assert [line[:5] for line in lines[1:-1]] == ["  0: ", "  1: "]
    assert "'w/replica_1'" in lines[2]
    assert lines[-1] == "}"


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.name)
@few
def test_assignments_in_cross_replica_context(way, aggregation):
    v = make(way, 1.0, aggregation=aggregation)

    @way.compile
    def step(x):
        v.assign(x)
        v.assign_add(2.0)
        return v.assign_sub(jnp.float32(1.0))

    assert float(step(5.0)) == 6.0
    assert components(way, v) == [6.0] * way.num_replicas
    assert v.read_value().sharding.is_fully_replicated


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.name)
@few
def test_per_replica_value_assigned_in_cross_replica_context_is_aggregated(way, aggregation):
    v = make(way, 1.0, aggregation=aggregation, name="v")
    step = way.compile(lambda x: v.assign_add(x))
    if aggregation is VariableAggregation.NONE:
        with pytest.raises(
            VariableError, match="per-replica value was assigned to mirrored variable 'v' with aggregation NONE"
        ):
            step(ranks(way))
        assert float(v) == 1.0
        return
    step(ranks(way))
    assert components(way, v) == [1.0 + combined(aggregation, way.num_replicas)] * way.num_replicas


@few
def test_wrong_shape_changes_nothing(way):
    v = make(way, 0.0, name="v")
    with pytest.raises(VariableError, match=r"v\.assign: the value has shape \(2,\)"):
        way.compile(lambda: v.assign([1.0, 2.0]))()
    assert components(way, v) == [0.0] * way.num_replicas


# Replica context


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS[1:], ids=lambda a: a.name)
@pytest.mark.sampled(4)
@pytest.mark.first(16)
def test_replicas_values_are_aggregated(way, aggregation, method):
    v = make(way, 10.0, aggregation=aggregation)

    def replica(x):
        new = getattr(v, method)(x)
        return new, v.read_value(), v + 1.0

    new, read, plus = way.compile(lambda x: way.strategy.run(replica, args=(x,)))(ranks(way))
    total = combined(aggregation, way.num_replicas)
    expected = {"assign": total, "assign_add": 10.0 + total, "assign_sub": 10.0 - total}[method]
    assert components(way, new) == components(way, read) == [expected] * way.num_replicas
    assert components(way, plus) == [expected + 1.0] * way.num_replicas
    assert components(way, v) == [expected] * way.num_replicas


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.name)
@few
def test_one_python_number_from_all_replicas(way, aggregation):
    v = make(way, 1.0, aggregation=aggregation, name="v")

    def replica():
        v.assign(5.0)
        v.assign_add(2.0)
        return v.assign_sub(1)

    step = way.compile(lambda: way.strategy.run(replica))
    if aggregation is VariableAggregation.SUM:
        with pytest.raises(VariableError, match=r"number 5\.0[\s\S]*op ReduceOp\.SUM\.[\s\S]*jnp\.asarray\(5\.0\)"):
            step()
        assert components(way, v) == [1.0] * way.num_replicas
        return
    assert components(way, step()) == [6.0] * way.num_replicas
    assert components(way, v) == [6.0] * way.num_replicas


@few
def test_equal_arrays_need_no_aggregation(way):
    v = make(way, [1.0, 1.0])
    x = jnp.array([3.0, 4.0])

    def replica():
        v.assign(x)
        v.assign_add(jnp.array([1.0, 2.0]))
        return v * 2.0

    assert components(way, way.compile(lambda: way.strategy.run(replica))()) == [[8.0, 12.0]] * way.num_replicas


def test_all_reduced_values_need_no_aggregation(way):
    v = make(way, 1.0)

    def replica(x):
        mean = mr.get_replica_context().all_reduce("MEAN", x)
        v.assign(0.5 * v + mean)
        return v.read_value()

    step = way.compile(lambda x: way.strategy.run(replica, args=(x,)))
    expected = 1.0
    for _ in range(3):
        result = step(ranks(way))
        expected = 0.5 * expected + (way.num_replicas + 1) / 2
    np.testing.assert_allclose(components(way, result), [expected] * way.num_replicas)
    np.testing.assert_allclose(components(way, v), [expected] * way.num_replicas)


@few
def test_drift_is_refused_and_leaves_the_value(way):
    v, w = make(way, 1.0, name="v"), make(way, 0.0, name="w")

    def replica(x):
        w.assign_add(1.0)
        v.assign(v * x)

    with pytest.raises(ReplicaDivergenceError, match=r"mirrored variable 'v'[\s\S]*test_access\.py:\d+"):
        way.compile(lambda x: way.strategy.run(replica, args=(x,)))(ranks(way))
    assert components(way, v) == [1.0] * way.num_replicas
    assert float(w) == 0.0


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(2, 4))
def test_drift_is_explained_by_the_path_from_its_origin(way):
    v = make(way, 1.0, name="v")

    def replica(x):
        loss = jnp.tanh(x)
        v.assign(v - loss)

    with pytest.raises(ReplicaDivergenceError) as caught:
        way.compile(lambda x: way.strategy.run(replica, args=(x,)))(ranks(way))
    message = str(caught.value)
    places = [message.index(word) for word in ("the per-replica argument 0 of run", "tanh", "sub")]
    assert places == sorted(places)
    assert "rule:" in message
    assert "all_reduce" in message


@pytest.mark.parametrize("devices", [1, 4])
def test_values_of_equal_bytes_and_other_shapes_are_refused(devices):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=4)
    with strategy.scope():
        v = mr.Variable(jnp.zeros((2, 3)), shape=(None, None))

    def assign():
        v.assign(jnp.arange(6.0).reshape((2, 3) if replica_id() == 0 else (3, 2)))

    with pytest.raises(ReplicaDivergenceError, match=r"would differ between replicas: replica 0: \[\[0"):
        strategy.run(assign)
    assert v.numpy().tolist() == [[0.0] * 3] * 2


@few
def test_assigning_on_one_replica_only_is_refused(way):
    v = make(way, 1.0, name="v")

    def replica(branch):
        if branch:
            v.assign(2.0)

    flags = mr.PerReplica([index == 0 for index in range(way.num_replicas)])
    if way.is_eager:
        with pytest.raises(ReplicaDivergenceError, match=r"replicas \[1.*\] did not assign it"):
            way.strategy.run(replica, args=(flags,))
    else:
        with pytest.raises(jax.errors.TracerBoolConversionError, match="Python code used a value"):
            _run_with_note(way, replica)
    assert float(v) == 1.0


def _run_with_note(way, replica):
    try:
        way.compile(lambda: way.strategy.run(lambda: replica(replica_id() == 0)))()
    except jax.errors.TracerBoolConversionError as error:
        raise jax.errors.TracerBoolConversionError.__new__(type(error), "".join(error.__notes__)) from error


@few
def test_reads_before_and_after_a_merge_see_the_newest_value(way):
    v = make(way, 0.0, aggregation=VariableAggregation.MEAN)

    def replica(x):
        first = v.assign_add(x)
        second = mr.get_replica_context().merge_call(lambda strategy: v.read_value())
        v.assign_sub(jnp.float32(1.0))
        return first, second, v.value()

    mean = (way.num_replicas + 1) / 2
    first, second, third = way.compile(lambda x: way.strategy.run(replica, args=(x,)))(ranks(way))
    n = way.num_replicas
    assert components(way, first) == [mean] * n
    assert np.unique(np.asarray(components(way, second))).tolist() == [mean]
    assert components(way, third) == [mean - 1.0] * n


@few
def test_operators_in_replicas(way):
    v = make(way, [7.0, 2.0])

    def replica(x):
        return v + x, x * v, jnp.sum(v), v[1], v // 2.0, v % 4.0, np.ones(2, np.float32) + v

    results = way.compile(lambda x: way.strategy.run(replica, args=(x,)))(ranks(way))
    for rank in range(way.num_replicas):
        value = np.array([7.0, 2.0], np.float32)
        x = rank + 1.0
        expected = (value + x, x * value, value.sum(), value[1], value // 2, value % 4, 1 + value)
        for result, one in zip(results, expected, strict=True):
            np.testing.assert_allclose(np.asarray(way.strategy.local_results(result)[rank]), one)


@few
def test_variable_as_argument_and_result_is_itself(way):
    v = make(way, 3.0)
    seen = []

    def replica(w):
        seen.append(w is v)
        return {"v": [w]}

    assert way.strategy.run(replica, args=(v,))["v"][0] is v
    assert set(seen) == {True}


# Custom aggregation


class Largest(ReduceOp):
    def __call__(self, per_replica):
        return jnp.max(per_replica, axis=0)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Largest(), lambda n: n),
        (Largest, lambda n: n),
        (lambda stacked: jnp.prod(stacked, axis=0), lambda n: float(np.prod(np.arange(1, n + 1)))),
        (ReduceOp.MEAN, lambda n: (n + 1) / 2),
        ("sum", lambda n: n * (n + 1) / 2),
    ],
    ids=["subclass object", "subclass", "callable", "ReduceOp", "name"],
)
@few
def test_custom_aggregation(way, aggregation, expected):
    v = make(way, 0.0, aggregation=aggregation)
    step = way.compile(lambda x: way.strategy.run(lambda y: v.assign(y), args=(x,)))
    step(ranks(way))
    assert components(way, v) == [pytest.approx(expected(way.num_replicas))] * way.num_replicas
    v.assign_add(ranks(way))
    assert float(v) == pytest.approx(2 * expected(way.num_replicas))


@pytest.mark.first(19)
@few
@pytest.mark.parametrize("aggregation", [VariableAggregation.SUM, lambda stacked: jnp.sum(stacked, axis=0)])
@pytest.mark.parametrize("place", ["replica", "cross-replica"])
@pytest.mark.parametrize(
    ("initial", "value"), [(0, jnp.uint8(200)), (0.0, jnp.float16(40000.0)), (0.0, jnp.int8(100))], ids=str
)
def test_values_of_a_narrower_dtype_are_aggregated_in_the_variables_dtype(way, initial, value, place, aggregation):
    v = make(way, initial, aggregation=aggregation)
    if place == "replica":
        way.compile(lambda: way.strategy.run(lambda: v.assign(value)))()
    else:
        v.assign(mr.PerReplica([value] * way.num_replicas))
    assert float(v.numpy()) == way.num_replicas * float(value)


@few
@pytest.mark.parametrize("aggregation", ["ONLY_FIRST_REPLICA", "SUM", "MEAN", lambda stacked: jnp.max(stacked, axis=0)])
def test_a_sync_on_read_variable_is_assigned_as_the_component_of_each_replica(way, aggregation):
    v = make(way, 0.0, aggregation=aggregation)
    source = make(way, 0.0, synchronization="ON_READ", aggregation="SUM")

    def replica():
        source.assign(1.0 + replica_id())
        with mr.GradientTape() as tape:
            v.assign(source)
            loss = 3.0 * v
        return tape.gradient(loss, v)

    gradients = way.compile(lambda: way.strategy.run(replica))()
    custom = float(way.num_replicas)
    expected = custom if callable(aggregation) else combined(VariableAggregation[aggregation], way.num_replicas)
    assert components(way, v) == [expected] * way.num_replicas
    assert components(way, gradients) == [3.0] * way.num_replicas


@few
@pytest.mark.parametrize("aggregation", ["ONLY_FIRST_REPLICA", "SUM", lambda stacked: stacked[0]])
@pytest.mark.parametrize("place", ["replica", "cross-replica"])
@pytest.mark.parametrize("value", [np.array([300, 1], np.int32), [300, 1]], ids=["array", "list"])
def test_integers_of_the_host_are_in_the_variables_range(way, value, place, aggregation):
    v = make(way, np.zeros(2, np.uint8), aggregation=aggregation, trainable=False)
    steps = {
        "replica": way.compile(lambda: way.strategy.run(lambda: v.assign(value))),
        "cross-replica": lambda: v.assign(mr.PerReplica([np.asarray(value)] * way.num_replicas)),
    }
    with pytest.raises(VariableError, match="the value 300 for variable"):
        steps[place]()
    assert v.numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("aggregation", "message"),
    [
        (lambda stacked: stacked, r"it returned float32\[2, 3\]"),
        (lambda stacked: jnp.sum(stacked, axis=0).astype(jnp.int32), r"it returned int32\[3\]"),
        (lambda stacked: 1 / 0, "it raised ZeroDivisionError"),
    ],
    ids=["shape", "dtype", "raises"],
)
def test_custom_aggregation_is_checked_at_creation(aggregation, message):
    with (
        mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope(),
        pytest.raises(ArgumentError, match=message),
    ):
        mr.Variable(jnp.zeros(3), aggregation=aggregation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "MEAN"}, "the mean of integers is not an integer"),
        ({"aggregation": "MAX"}, "Invalid variable aggregation mode: MAX for variable: n"),
        ({"aggregation": 7}, "Invalid variable aggregation mode: 7 for variable: n"),
        ({"synchronization": "NONE"}, "`NONE` variable synchronization mode is not supported"),
        ({"synchronization": "SOMETIMES"}, "Invalid variable synchronization mode: SOMETIMES for variable: n"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        mr.Variable(0, name="n", **options)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_sum_of_a_boolean_variable_is_refused_with_any_number_of_replicas(num_replicas):
    with (
        mr.MirroredStrategy(["CPU:0"], num_replicas=num_replicas).scope(),
        pytest.raises(ArgumentError, match="booleans have no sum"),
    ):
        mr.Variable(False, aggregation=VariableAggregation.SUM)


def test_integer_counter_of_the_first_replica():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        n = mr.Variable(0, aggregation=VariableAggregation.ONLY_FIRST_REPLICA, trainable=False)
    step = mr.function(lambda: strategy.run(lambda: n.assign_add(1)))
    for _ in range(3):
        step()
        strategy.run(lambda: n.assign_add(1))
    assert int(n) == 6


# Contexts that do not fit


def test_foreign_strategies():
    mine, other = mr.MirroredStrategy(["CPU:0", "CPU:1"]), mr.MirroredStrategy(["CPU:2", "CPU:3"])
    with mine.scope():
        v = mr.Variable(1.0, name="v")
    with pytest.raises(ContextError, match=r"variable 'v' belongs to"), other.scope():
        v.assign(9.0)
    with pytest.raises(ContextError, match=r"variable 'v' belongs to"):
        other.run(lambda: v.assign(jnp.float32(1.0)))
    with pytest.raises(ContextError, match=r"variable 'v' belongs to"):
        mr.function(lambda: other.run(lambda: v.assign(jnp.float32(1.0))))()
    assert float(v) == 1.0


@few
def test_a_variable_made_out_of_scope_is_shared_by_eager_replicas_and_equal_on_compiled_ones(way):
    v = mr.Variable(0.0, name="v")
    step = way.compile(lambda x: way.strategy.run(lambda y: v.assign_add(y), args=(x,)))
    if way.is_eager:
        assert components(way, step(ranks(way))) == np.cumsum(np.arange(1.0, way.num_replicas + 1)).tolist()
        assert float(v) == way.num_replicas * (way.num_replicas + 1) / 2
        return
    with pytest.raises(
        ReplicaDivergenceError, match=r"variable \(made outside of strategy.scope\(\)\) 'v'.*"
    ) as caught:
        step(ranks(way))
    assert "make the variable (or the metric, layer or optimizer that it belongs to) inside" in str(caught.value)
    assert float(v) == 0.0


@few
@pytest.mark.parametrize("method", ["assign", "assign_add"])
def test_a_sum_of_components_made_out_of_scope_has_none_in_compiled_replicas(way, method):
    v = mr.Variable(0.0, name="v", synchronization="ON_READ", aggregation="SUM")

    def replica(y):
        getattr(v, method)(y if method == "assign_add" else v + y, read_value=False)

    step = way.compile(lambda x: way.strategy.run(replica, args=(x,)))
    if way.is_eager:
        step(ranks(way))
        step(ranks(way))
        assert float(v) == way.num_replicas * (way.num_replicas + 1)
        return
    with pytest.raises(ContextError, match="only a variable created in the scope has components"):
        step(ranks(way))
    assert float(v) == 0.0


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(2, 4))
@pytest.mark.parametrize("update", ["assign", "assign_add"])
def test_a_compiled_run_warns_of_updates_that_eager_replicas_would_make_in_turn(way, update):
    v = mr.Variable(1.0, name="v")
    step = way.compile(lambda: way.strategy.run(lambda: v.assign(v * 2) if update == "assign" else v.assign_add(v)))
    with pytest.warns(OutOfScopeWarning, match=rf"'v', made outside .* by {way.num_replicas} replicas"):
        step()
    step()
    assert float(v) == 4.0


PLAIN = ("SUM", "MEAN", "ONLY_FIRST_REPLICA", lambda stacked: jnp.sum(stacked, axis=0))


@few
@pytest.mark.parametrize("aggregation", PLAIN)
def test_the_aggregation_of_a_variable_made_out_of_scope_is_not_applied_to_assigned_values(way, aggregation):
    v, sliced = mr.Variable(0.0, aggregation=aggregation), mr.Variable([1.0, 2.0], aggregation=aggregation)

    def replica():
        v.assign(jnp.float32(3.0))
        Slice(sliced, slice(1)).assign([5.0])

    step = way.compile(lambda: way.strategy.run(replica))
    with pytest.warns(OutOfScopeWarning) if not way.is_eager and way.num_replicas > 1 else nullcontext():
        step()
    assert float(v) == 3.0
    assert sliced.numpy().tolist() == [5.0, 2.0]


@few
@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_additions_to_a_sum_made_out_of_scope_are_those_of_all_replicas(way, method):
    v = mr.Variable(0.0, aggregation="SUM")
    way.compile(lambda x: way.strategy.run(lambda y: getattr(v, method)(y, read_value=False), args=(x,)))(ranks(way))
    total = way.num_replicas * (way.num_replicas + 1) / 2
    assert float(v) == (total if method == "assign_add" else -total)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("aggregation", PLAIN)
def test_a_per_replica_value_is_refused_by_a_variable_made_out_of_scope(aggregation, compiled):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    v = mr.Variable(0.0, aggregation=aggregation, name="v")

    def step():
        v.assign(strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + jnp.float32(1.0)))

    with pytest.raises(VariableError, match="'v', which was created outside of strategy.scope"):
        (mr.function(step) if compiled else step)()
    assert float(v) == 0.0


@few
def test_assigning_what_does_not_depend_on_the_old_value_is_the_same_in_all_ways(way):
    v, merged = mr.Variable(1.0), mr.Variable(0.0)

    def replica():
        mr.get_replica_context().merge_call(lambda strategy: merged.assign_add(1.0, read_value=False))
        return v.assign(7.0)

    step = way.compile(lambda: way.strategy.run(replica))
    step()
    assert components(way, step()) == [7.0] * way.num_replicas
    assert (float(v), float(merged)) == (7.0, 2.0)


@pytest.mark.parametrize("operation", [operator.add, operator.mul], ids=lambda o: o.__name__)
def test_arithmetic_in_cross_replica_context_gives_an_array(operation):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable([1.0, 2.0])
    assert_same_bits(np.asarray(operation(v, 3.0)), operation(np.array([1.0, 2.0], np.float32), np.float32(3.0)))
    assert_same_bits(np.asarray(operation(np.ones(2, np.float32), v)), operation(np.ones(2, np.float32), v.numpy()))


def test_local_results_of_an_assignment_outside_run_are_one_per_replica():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        variable = mr.Variable(1.0)
    for result, expected in (
        (variable.assign(3.0), 3.0),
        (variable.assign_add(2.0), 5.0),
        (variable.assign_sub(1.0), 4.0),
    ):
        copies = strategy.experimental_local_results(result)
        assert [float(copy) for copy in copies] == [expected] * 2
        assert [copy.device for copy in copies] == jax.devices()[:2]
    assert len(strategy.experimental_local_results(variable.read_value())) == 1
    assert len(strategy.experimental_local_results(result + 0.0)) == 1


def test_the_result_of_an_assignment_outlives_a_step_that_donates_the_variable():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        variable = mr.Variable(jnp.zeros(4))
    result = variable.assign(jnp.arange(4.0))
    step = mr.function(lambda: strategy.run(lambda: variable.assign_add(jnp.ones(4))))
    step()
    assert variable.numpy().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert [copy.tolist() for copy in strategy.experimental_local_results(result)] == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_notes_of_results_are_dropped_with_the_results():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        variable = mr.Variable(1.0)
    before = len(assigned._results)
    result = variable.assign(2.0)
    assert len(assigned._results) == before + 1
    del result
    gc.collect()
    assert len(assigned._results) == before


@pytest.mark.parametrize("method", ["assign", "assign_add"])
def test_a_sharded_array_that_a_merge_assigns_is_read_whole(method):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    with strategy.scope():
        v = mr.Variable(jnp.zeros(4))
    sharded = jax.device_put(jnp.arange(4.0), strategy.device_assignment.sharded)

    def replica():
        mr.get_replica_context().merge_call(lambda _: (getattr(v, method)(sharded), None)[1])
        return v.read_value() * 2

    doubled = strategy.experimental_local_results(strategy.run(replica))
    assert [one.tolist() for one in doubled] == [[0.0, 2.0, 4.0, 6.0]] * 4
    assert v.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]


@few
def test_a_plain_variable_takes_a_key_in_a_run(way):
    v, key = mr.Variable(jax.random.key(0), trainable=False), jax.random.key(7)
    way.compile(lambda: way.strategy.run(lambda: v.assign(key)))()
    assert jax.random.key_data(v.read_value()).tolist() == jax.random.key_data(key).tolist()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_value_of_a_variable_of_an_open_shape_is_assigned(compiled):
    u, v = mr.Variable([5.0, 6.0], shape=(None,)), mr.Variable([1.0, 2.0])
    (mr.function if compiled else lambda fn: fn)(lambda: v.assign(u))()
    assert v.numpy().tolist() == [5.0, 6.0]
    u.assign([1.0, 2.0, 3.0])
    with pytest.raises(VariableError, match=r"the value has shape \(3,\)"):
        v.assign(u)


@pytest.mark.parametrize("use", ["reduce", "assign", "assign_add"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
def test_a_function_that_reduces_over_deterministic_replicas_is_bit_identical(use, deterministic, monkeypatch):
    notes = []
    monkeypatch.setattr(FunctionStore, "note_reduction", lambda self, *, bit_identical: notes.append(bit_identical))
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, deterministic=deterministic)
    with strategy.scope():
        v = mr.Variable(jnp.zeros(3), aggregation="MEAN")
    value = strategy.run(lambda: replica_id() + jnp.ones(3))

    @mr.function
    def step(value):
        return strategy.reduce("MEAN", value, axis=None) if use == "reduce" else getattr(v, use)(value)

    assert step(value).tolist() == [2.5] * 3
    assert notes == [deterministic]


def test_an_addition_in_an_eager_run_has_the_shape_that_the_run_has_assigned_before():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        v = mr.Variable([1.0, 2.0], shape=[None])

    def replica(ones):
        v.assign(ones)
        v.assign_add(ones)

    strategy.run(replica, args=(jnp.ones(3),))
    assert v.numpy().tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(VariableError, match=r"variable .* has shape \(3,\)"):
        v.assign_add(jnp.ones(2))


@pytest.mark.ways(replicas=(2,))
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_replicas_assign_a_lost_variable_without_reading_it(way, aggregation):
    v = make(way, 0.0, aggregation=aggregation)
    v.lose("it was donated")
    way.compile(lambda: way.strategy.run(lambda: v.assign(jnp.float32(3.0), read_value=False)))()
    assert v.numpy() == (6.0 if aggregation is VariableAggregation.SUM else 3.0)


@pytest.mark.first(5)
@pytest.mark.ways(replicas=(1, 2))
@pytest.mark.parametrize("in_merge", [False, True])
def test_a_program_may_donate_an_array_that_replicas_have_assigned(way, in_merge):
    v, array = make(way, jnp.zeros(4)), jnp.full(4, 5.0)

    def assign(_strategy=None):
        v.assign(array, read_value=False)

    way.compile(
        lambda: way.strategy.run(lambda: mr.get_replica_context().merge_call(assign) if in_merge else assign())
    )()
    jax.jit(lambda x: x + 1.0, donate_argnums=0)(array)
    assert v.numpy().tolist() == [5.0] * 4
