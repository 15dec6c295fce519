"""Per-replica values that another strategy made: a strategy refuses them, because it would lose components."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.errors import ContextError, ValuesError
from strategies.programs import fid, per_replica

FOUR = [f"CPU:{i}" for i in range(4)]


@pytest.fixture
def a():
    return mr.MirroredStrategy(FOUR)


def made(strategy, kind):
    """A per-replica value of a strategy, as components or as one stacked array."""
    if kind == "batch":
        return next(iter(strategy.experimental_distribute_dataset(mr.data.Dataset.range(8).batch(8))))

    def run():
        return strategy.run(lambda: fid() + 1)

    return run() if kind == "components" else mr.function(run)()


STRATEGIES = {
    "2 on 2": lambda: mr.MirroredStrategy(FOUR[:2]),
    "6 on 2": lambda: mr.MirroredStrategy(FOUR[:2], num_replicas=6),
    "4 on 1": lambda: mr.MirroredStrategy(FOUR[:1], num_replicas=4),
    "one device": lambda: mr.OneDeviceStrategy("CPU:0"),
    "default": mr.get_strategy,
}


@pytest.mark.first(7)
@pytest.mark.parametrize("kind", ["components", "stacked", "batch"])
@pytest.mark.parametrize("other", STRATEGIES)
def test_values_of_another_strategy_are_refused(a, other, kind):
    strategy, value = STRATEGIES[other](), made(a, kind)
    uses = [
        lambda: strategy.run(jnp.sum, args=(value,)),
        lambda: strategy.run(mr.function(jnp.sum), args=(value,)),
        lambda: mr.function(lambda one: strategy.run(jnp.sum, args=(one,)))(value),
        lambda: strategy.reduce("SUM", value, axis=None),
        lambda: strategy.gather(value, axis=0),
    ]
    for use in uses:
        with pytest.raises(ValuesError, match=r"with 4 components on the replicas of .*replicas on 4 .* was given to"):
            use()


def test_rows_of_empty_slots_are_not_read_as_components():
    value = made(mr.MirroredStrategy(FOUR[:3], num_replicas=4), "stacked")
    other = mr.MirroredStrategy(FOUR[:2], num_replicas=6)
    with pytest.raises(ValuesError, match="4 replicas on 3 devices"):
        other.reduce("SUM", value, axis=None)


def test_a_warm_function_tells_values_with_equally_many_slots_apart():
    even, uneven = (mr.MirroredStrategy(FOUR[:3], num_replicas=n) for n in (6, 5))
    total = mr.function(lambda one: even.reduce("SUM", even.run(jnp.sum, args=(one,)), axis=None))
    value = made(even, "stacked")
    assert [float(total(value)) for _ in range(3)] == [21.0] * 3
    with pytest.raises(ValuesError, match="5 replicas on 3 devices"):
        total(made(uneven, "stacked"))


def test_an_equal_strategy_uses_the_values(a):
    equal = mr.MirroredStrategy(FOUR)
    for kind in ("components", "stacked"):
        value = made(a, kind)
        assert float(equal.reduce("SUM", equal.run(lambda x: x * 2, args=(value,)), axis=None)) == 20.0


def test_values_without_devices_are_used_by_every_strategy_with_as_many_replicas(a):
    value = mr.PerReplica([jnp.asarray(1.0 + i) for i in range(4)])
    for strategy in (a, mr.MirroredStrategy(FOUR[:1], num_replicas=4), mr.MirroredStrategy(FOUR[:3], num_replicas=4)):
        assert float(strategy.reduce("SUM", value, axis=None)) == 10.0
        doubled = strategy.run(lambda x: x * 2, args=(value,))
        assert [float(one) for one in strategy.experimental_local_results(doubled)] == [2.0, 4.0, 6.0, 8.0]
    for strategy in (STRATEGIES["2 on 2"](), STRATEGIES["6 on 2"](), STRATEGIES["one device"](), mr.get_strategy()):
        with pytest.raises(ValuesError, match="with 4 components was given to"):
            strategy.reduce("SUM", value, axis=None)


def test_values_without_devices_are_used_by_compiled_runs_of_several_strategies():
    """The value stayed on the devices of the first, and the next raised an error that called it that strategy's."""
    value = mr.PerReplica([jnp.asarray(1.0), jnp.asarray(2.0)])
    for devices in (FOUR[:2], FOUR[2:], FOUR[:1]):
        strategy = mr.MirroredStrategy(devices, num_replicas=2)
        doubled = mr.function(lambda one: strategy.run(lambda x: x * 2, args=(one,)))(value)  # noqa: B023
        assert [float(one) for one in strategy.experimental_local_results(doubled)] == [2.0, 4.0]
        assert {device for one in doubled.values for device in one.devices()} == set(strategy.device_assignment.devices)
        assert value.device_assignment is None


@pytest.mark.parametrize("count", [1, 3, 4])
def test_values_without_devices_must_have_one_component_per_replica_also_in_a_scope(count):
    """The components after the strategy's last replica were dropped, silently."""
    strategy, value = STRATEGIES["2 on 2"](), mr.PerReplica([jnp.ones(3)] * count)
    with strategy.scope(), pytest.raises(ValuesError, match=f"with {count} components? was given to"):
        mr.function(lambda one: strategy.run(jnp.sum, args=(one,)))(value)


def test_values_of_one_replica_are_used_by_every_strategy_with_one():
    one = mr.OneDeviceStrategy("CPU:0")
    value = per_replica(one, [3.0])
    for strategy in (one, mr.OneDeviceStrategy("CPU:1"), mr.get_strategy()):
        assert float(strategy.reduce("SUM", strategy.run(lambda x: x * 2, args=(value,)), axis=None)) == 6.0


def test_metrics_of_another_strategy_are_refused(a):
    b, one = STRATEGIES["2 on 2"](), STRATEGIES["one device"]()
    with a.scope():
        metric = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", trainable=False, name="seen")
    a.run(lambda: metric.assign_add(fid() + 1))
    with pytest.raises(ValuesError, match="variable 'seen' with 4 components"):
        b.reduce("SUM", metric, axis=None)

    def merged():
        return mr.get_replica_context().merge_call(lambda _: metric.read_value())

    for program in (lambda: b.run(merged), lambda: one.run(metric.read_value), lambda: b.run(mr.function(merged))):
        with pytest.raises(ContextError, match="belongs to MirroredStrategy"):
            program()
    assert float(metric.read_value()) == float(a.reduce("SUM", metric, axis=None)) == 10.0


@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_values_of_another_strategy_are_not_assigned(a, synchronization):
    with STRATEGIES["2 on 2"]().scope():
        v = mr.Variable(0.0, synchronization=synchronization, aggregation="SUM", trainable=False)
    with pytest.raises(ValuesError, match="4 replicas on 4 devices"):
        v.assign(made(a, "components"))
    assert float(v.read_value()) == 0.0
