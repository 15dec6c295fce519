"""`StrategyExtended`: the documented pattern of merge_call, reduce_to and update, and the rest."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import ArgumentError, ContextError
from strategies.programs import fid, parts, per_replica

few = pytest.mark.ways(replicas=(4,))


@pytest.fixture
def two():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def variable(strategy, value, **options):
    with strategy.scope():
        return mr.Variable(value, **options)


def test_merge_call_reduce_to_update(way):
    """The pattern of TensorFlow's documentation: all replicas' values are reduced, and the variable updated once."""
    v = variable(way.strategy, 1.0)

    def replica(x):
        def merge(strategy, value):
            total = strategy.extended.reduce_to("SUM", value, destinations=v)
            return strategy.extended.update(v, lambda var, t: var.assign_add(t, read_value=False), args=(total,))

        mr.get_replica_context().merge_call(merge, args=(x,))
        return v.read_value()

    n = way.num_replicas
    x = per_replica(way.strategy, [1.0 * r for r in range(n)])
    result = way.compile(lambda x: way.strategy.run(replica, args=(x,)))(x)
    expected = 1.0 + n * (n - 1) / 2
    assert parts(way.strategy, result) == [expected] * n
    assert parts(way.strategy, v) == [expected] * n


@few
def test_momentum_by_hand(way):
    v, m = variable(way.strategy, [1.0, 2.0]), variable(way.strategy, [0.0, 0.0])
    extended = way.strategy.extended

    @way.compile
    def step(x):
        gradients = way.strategy.run(lambda y: 2 * v * y, args=(x,))
        mean = extended.reduce_to("MEAN", gradients, destinations=v)
        extended.update(m, lambda mom, g: mom.assign(0.9 * mom + g, read_value=False), args=(mean,))
        extended.update(v, lambda var, mom: var.assign_sub(0.1 * mom, read_value=False), args=(m,))

    n = way.num_replicas
    x = per_replica(way.strategy, [[1.0 + r, 2.0 - r] for r in range(n)])
    value, momentum = np.array([1.0, 2.0]), np.zeros(2)
    rate = np.mean([[1.0 + r, 2.0 - r] for r in range(n)], axis=0)
    for _ in range(3):
        step(x)
        momentum = 0.9 * momentum + 2 * value * rate
        value = value - 0.1 * momentum
    np.testing.assert_allclose(v.numpy(), value, rtol=1e-5)
    np.testing.assert_allclose(m.numpy(), momentum, rtol=1e-5)


@pytest.mark.first(5)
def test_update_with_values_that_were_all_reduced_in_the_replicas(way):
    """As `OptimizerV2.apply_gradients` does: the replicas sum their gradients, and a merge applies them."""
    v, m = variable(way.strategy, [1.0, 2.0]), variable(way.strategy, [0.0, 0.0])

    def merge(strategy, gradients):
        update = strategy.extended.update
        update(m, lambda mom, g: mom.assign(0.5 * mom + g["m"]), args=(gradients,))
        return update(
            v, lambda var, g, scale: var.assign_sub(scale * (g + m)), args=(gradients["v"],), kwargs={"scale": 0.25}
        )

    def replica():
        context = mr.get_replica_context()
        g = jnp.asarray([1.0, 2.0]) * (context.replica_id_in_sync_group + 1)
        total = context.all_reduce("SUM", g)
        return context.merge_call(merge, args=({"v": total, "m": 2 * total},))

    step = way.compile(lambda: way.strategy.run(replica))
    step()
    results = step()
    total = np.asarray([1.0, 2.0]) * (way.num_replicas * (way.num_replicas + 1) / 2)
    np.testing.assert_allclose(m.numpy(), 3 * total)
    np.testing.assert_allclose(v.numpy(), np.asarray([1.0, 2.0]) - 0.25 * (2 * total + 5 * total))
    for result in way.strategy.experimental_local_results(results):
        np.testing.assert_allclose(result, v.numpy())


@pytest.mark.parametrize("aggregation", ["NONE", "SUM"])
@few
def test_update_refuses_values_that_differ_between_replicas(way, aggregation):
    """Replicas' own gradients must be reduced before a variable that is not averaged is assigned."""
    with way.strategy.scope():
        v = mr.Variable(jnp.asarray([1.0, 2.0]), aggregation=mr.VariableAggregation[aggregation])

    def merge(strategy, gradient):
        strategy.extended.update(v, lambda var, g: var.assign_sub(g), args=(gradient,))

    def replica():
        context = mr.get_replica_context()
        context.merge_call(merge, args=(jnp.ones(2) * (context.replica_id_in_sync_group + 1),))

    with pytest.raises(mr.errors.ReplicaDivergenceError, match="would differ between replicas"):
        way.compile(lambda: way.strategy.run(replica))()
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])


SCALED = {
    "assign": lambda v, x: v.assign(v.read_value().at[0].multiply(x)),
    "scatter_mul": lambda v, x: v.scatter_mul(tf.IndexedSlices(x[None], jnp.asarray([0]))),
    "scatter_div": lambda v, x: v.scatter_div(tf.IndexedSlices(1 / x[None], jnp.asarray([0]))),
}


@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("method", SCALED)
def test_factors_apply_to_the_copy_of_the_replica(two, method, aggregation):
    """A copy is multiplied by its own factor only; the aggregation is that of `assign`."""
    with two.scope():
        v = mr.Variable([3.0, 5.0], aggregation=aggregation)
    factors = two.experimental_distribute_values_from_function(
        lambda context: 2.0 ** (context.replica_id_in_sync_group + 1)
    )
    if aggregation in ("NONE", "SUM"):
        with pytest.raises(mr.errors.ReplicaDivergenceError):
            two.extended.update(v, SCALED[method], args=(factors,))
        return
    two.extended.update(v, SCALED[method], args=(factors,))
    assert v.numpy().tolist() == [9.0 if aggregation == "MEAN" else 6.0, 5.0]


UPDATES = {
    "assign": lambda v, g: v.assign(v.read_value() - g),
    "assign_sub": lambda v, g: v.assign_sub(g),
    "scatter_sub": lambda v, g: v.scatter_sub(tf.IndexedSlices(g, jnp.arange(2))),
}


@pytest.mark.first(14)
@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("method", UPDATES)
@few
def test_update_assigns_what_each_copy_is_to_have(way, method, aggregation):
    """Equal values of all replicas, of which the library does not know that they are equal, are not summed."""
    with way.strategy.scope():
        v = mr.Variable(jnp.asarray([10.0, 20.0]), aggregation=mr.VariableAggregation[aggregation])

    def merge(strategy, gradient):
        strategy.extended.update(v, UPDATES[method], args=(gradient,))

    def replica(zero):
        context = mr.get_replica_context()
        context.merge_call(merge, args=(zero + jnp.asarray([1.0, 2.0]),))
        context.merge_call(merge, args=(context.all_reduce("MEAN", zero + 1.0) * jnp.asarray([1.0, 2.0]),))

    way.compile(lambda zero: way.strategy.run(replica, args=(zero,)))(jnp.float32(0))
    np.testing.assert_allclose(v.numpy(), [8.0, 16.0])


def test_destinations(two):
    v, x = variable(two, 0.0), two.run(fid)
    extended = two.extended
    for destinations in (v, x, None):
        result = extended.reduce_to("SUM", x, destinations)
        assert isinstance(result, mr.Mirrored)
        assert parts(two, result) == [1.0, 1.0]
    on_device = extended.reduce_to(mr.ReduceOp.MEAN, x, "CPU:0")
    assert float(on_device) == 0.5
    assert not isinstance(on_device, mr.Mirrored)
    pair = extended.batch_reduce_to("SUM", [(x, v), (two.run(lambda: jnp.ones(2)), v)])
    assert [parts(two, one) for one in pair] == [[1.0, 1.0], [[2.0, 2.0]] * 2]
    assert isinstance(extended.broadcast_to(jnp.ones(2), v), mr.Mirrored)


def test_plain_values_are_reduced_already(two):
    v = variable(two, 0.0)
    assert float(two.extended.reduce_to("MEAN", jnp.float32(1.5), v)) == 1.5
    with pytest.raises(
        ArgumentError, match=r"StrategyExtended\.reduce_to: ReduceOp\.SUM was requested for a value that"
    ):
        two.extended.reduce_to("SUM", jnp.float32(1.5), v)


def test_mirrored_values_in_expressions_and_as_arguments(two):
    total = two.extended.reduce_to("SUM", two.run(lambda: fid() + 1), variable(two, 0.0))
    assert float(total + 1) == float(1 + total) == 4.0
    assert float(jnp.sqrt(total + 1)) == 2.0
    assert float(jnp.add(total, total)) == 6.0
    assert (np.ones(2) * total).tolist() == [3.0, 3.0]
    assert (total.shape, str(total.dtype), total.num_replicas) == ((), "float32", 2)
    assert parts(two, two.run(lambda x: x * (fid() + 2), args=(total,))) == [6.0, 9.0]
    assert float(mr.function(lambda t: t * 2)(total)) == 6.0
    assert repr(total).startswith("Mirrored:{\n  0: ")


@few
def test_update_ungrouped(way):
    v = variable(way.strategy, 1.0)
    result = way.strategy.extended.update(v, lambda var, x: var * x, args=(3.0,), group=False)
    assert isinstance(result, tuple)
    assert [float(x) for x in result] == [3.0] * way.num_replicas


def test_update_refuses_foreign_variables(two):
    with pytest.raises(ArgumentError, match=r"StrategyExtended\.update"):
        two.extended.update(mr.Variable(1.0), lambda v: v.assign(2.0))


def test_a_variable_is_broadcast_by_its_value(two):
    v = variable(two, 1.0)
    before = two.extended.broadcast_to([v], None)
    v.assign(5.0)
    assert float(before.value[0]) == 1.0


@pytest.mark.parametrize("args", [np.ones(2), jnp.ones(2), mr.PerReplica([1.0, 2.0]), {"x": 1}, "text"])
def test_arguments_must_be_in_a_list_or_tuple(two, args):
    """The rows of an array were the arguments, silently."""
    v = variable(two, 1.0)
    calls = [
        lambda: two.extended.update(v, lambda v, *x: None, args=args),
        lambda: two.extended.update_non_slot(v, lambda *x: None, args=args),
        lambda: two.run(lambda: mr.get_replica_context().merge_call(lambda strategy, *x: None, args=args)),
    ]
    if not isinstance(args, mr.PerReplica):
        calls.append(lambda: two.extended.call_for_each_replica(lambda *x: None, args=args))
    for call in calls:
        with pytest.raises(ArgumentError, match=r"args=\(x,\)"):
            call()


def test_update_non_slot(two):
    assert two.extended.update_non_slot(two.extended.worker_devices, lambda x: x + 1, args=(1,)) == 2
    assert two.extended.update_non_slot(None, lambda: 3, group=False) == (3, 3)


def test_reduce_to_errors(two):
    x = two.run(fid)
    with pytest.raises(ArgumentError, match="'MAX'"):
        two.extended.reduce_to("MAX", x, "CPU:0")
    with pytest.raises(ContextError, match=r"extended\.reduce_to: it was called inside a replica"):
        two.run(lambda: two.extended.reduce_to("SUM", x, "CPU:0"))


def test_colocation_and_containers(two):
    v, plain = variable(two, 1.0), mr.Variable(1.0)
    with two.extended.colocate_vars_with(v):
        assert isinstance(mr.Variable(2.0), mr.DistributedValues)
    with two.scope(), two.extended.colocate_vars_with(v.values[1]):
        assert isinstance(mr.Variable(2.0), mr.DistributedValues)
    with pytest.raises(ArgumentError, match="colocated with variables of the same strategy"):
        two.extended.colocate_vars_with(plain).__enter__()
    assert two.extended.value_container(v.values[1]) is v
    assert two.extended.value_container(plain) is plain
    assert two.extended.read_var(v).tolist() == 1.0


def test_places_and_flags(two):
    extended = two.extended
    assert [device[-5:] for device in extended.worker_devices] == ["CPU:0", "CPU:1"]
    assert extended.parameter_devices == extended.non_slot_devices([]) == extended.worker_devices
    assert extended.should_checkpoint
    assert extended.should_save_summary
    assert extended.experimental_should_init
    assert not extended.experimental_between_graph
    assert not extended.experimental_require_static_shapes
    folded = mr.MirroredStrategy(["CPU:0"], num_replicas=3)
    assert len(folded.extended.worker_devices) == 3


def test_each_replica_can_have_its_own_list_of_arguments(two):
    args = mr.PerReplica([["a"], ["b"]])
    result = two.extended.call_for_each_replica(lambda own, end: own + str(fid()) + end, args=args, kwargs={"end": "."})
    assert two.extended.local_results(result) == ("a0.0.", "b1.0.")


def test_call_for_each_replica_and_local_results(two):
    result = two.extended.call_for_each_replica(lambda a, b: a + b * fid(), args=[1.0], kwargs={"b": 2.0})
    assert [float(x) for x in two.extended.local_results(result)] == [1.0, 3.0]
