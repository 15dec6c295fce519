"""Values that the devices have computed together (reductions, aggregated reads, results) as inputs of a later run."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import mirrored as mr

LAYOUTS = [(2, 2), (4, 2), (3, 2)]


def strategy_of(layout):
    replicas, devices = layout
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.first(3)
def test_the_gradient_of_an_aggregated_read_that_is_an_argument(layout, aggregation):
    strategy = strategy_of(layout)
    with strategy.scope():
        w = mr.Variable(2.0)
        count = mr.Variable(
            1.0,
            synchronization=mr.VariableSynchronization.ON_READ,
            aggregation=getattr(mr.VariableAggregation, aggregation),
        )

    def gradients():
        with mr.GradientTape() as tape:
            tape.watch(count)
            y = strategy.run(lambda a: a * w, args=(count.read_value(),))
            loss = strategy.reduce("SUM", y, axis=None)
        return tape.gradient(loss, [count, w])

    replicas = layout[0]
    expected = [2.0 * replicas, 1.0 * replicas * (replicas if aggregation == "SUM" else 1)]
    assert [float(one) for one in gradients()] == expected
    assert [float(one) for one in mr.function(gradients)()] == expected


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", ["argument", "closure"])
@pytest.mark.parametrize("made_by", ["reduce", "declared", "merged", "gathered"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.first(2)
def test_a_selection_of_an_outer_value_in_a_run_has_the_eager_gradient(layout, made_by, how):
    strategy = strategy_of(layout)
    with strategy.scope():
        w = mr.Variable(2.0)
    context = mr.get_replica_context
    totals = {
        "reduce": lambda x: strategy.reduce("SUM", strategy.run(lambda x: x * w, args=(x,)), axis=None),
        "declared": lambda x: strategy.run(
            lambda x: context().all_reduce("SUM", x * w), args=(x,), out_specs=PartitionSpec()
        ),
        "merged": lambda x: strategy.run(
            lambda x: context().merge_call(lambda s, y: s.reduce("SUM", y, axis=None), args=(x * w,)), args=(x,)
        ),
        "gathered": lambda x: jnp.sum(strategy.gather(strategy.run(lambda x: (x * w)[None], args=(x,)), axis=0)),
    }

    def gradient(x):
        with mr.GradientTape() as tape:
            total = totals[made_by](x)

            def select(x, total):
                return jnp.where(x > 1.5, total * x, total)

            if how == "argument":
                y = strategy.run(select, args=(x, total))
            else:
                y = strategy.run(lambda x: select(x, total), args=(x,))
            loss = strategy.reduce("SUM", y, axis=None)
        return tape.gradient(loss, w)

    x = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(context.replica_id_in_sync_group + 1)
    )
    values = np.arange(1, layout[0] + 1)
    expected = values.sum() * np.where(values > 1.5, values, 1).sum()
    assert float(gradient(x)) == expected
    assert float(mr.function(gradient)(x)) == expected


@pytest.mark.parametrize("is_taped", [False, True])
@pytest.mark.parametrize("made_by", ["variable", "reduce", "gather"])
def test_an_eager_run_explains_a_closed_over_value_of_all_devices(made_by, is_taped):
    """JAX raised its error about incompatible devices; compiled, and as an argument, the value is accepted."""
    strategy = strategy_of((2, 2))
    with strategy.scope():
        w, scale = mr.Variable([1.0, 2.0]), mr.Variable([3.0, 4.0])
    parts = strategy.run(lambda: scale.read_value())
    value = {
        "variable": scale.read_value,
        "reduce": lambda: strategy.reduce("MEAN", parts, axis=None),
        "gather": lambda: strategy.gather(parts, axis=0)[:2],
    }[made_by]()

    def replica(value):
        with mr.GradientTape() as tape:
            y = value * w
        return tape.gradient(y, w) * w if is_taped else y

    def results(function):
        return [one.tolist() for one in strategy.experimental_local_results(function())]

    with pytest.raises(mr.errors.DeviceError, match=r"combines arrays on different devices[\s\S]*args=\(value,\)"):
        strategy.run(lambda: replica(value))
    expected = [[3.0, 8.0]] * 2
    assert results(lambda: strategy.run(replica, args=(value,))) == expected
    assert results(mr.function(lambda: strategy.run(lambda: replica(value)))) == expected
