"""Per-replica values without elements, and values whose components have different dtypes."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import HierarchicalCopyAllReduce, NcclAllReduce
from mirrored.errors import ValuesError

LAYOUTS = {
    "one replica per device": {"devices": ["CPU:0", "CPU:1"]},
    "two and one": {"devices": ["CPU:0", "CPU:1"], "num_replicas": 3},
    "packed": {"devices": ["CPU:0", "CPU:1"], "cross_device_ops": NcclAllReduce()},
    "two levels": {"devices": ["CPU:0", "CPU:1"], "cross_device_ops": HierarchicalCopyAllReduce()},
    "fixed order": {"devices": ["CPU:0", "CPU:1", "CPU:2"], "deterministic": True},
}


@pytest.fixture(params=list(LAYOUTS))
def strategy(request):
    return mr.MirroredStrategy(**LAYOUTS[request.param])


def per_replica(strategy, value_of):
    return strategy.experimental_distribute_values_from_function(
        lambda context: value_of(context.replica_id_in_sync_group)
    )


@pytest.mark.parametrize("collect", ["SUM", "MEAN", "gather"])
def test_a_number_computed_from_an_empty_collective_is_replicated(strategy, collect):
    with strategy.scope():
        v = mr.Variable(np.float32(1.0))

    def replica_step(x):
        context = mr.get_replica_context()
        all_of = context.all_gather(x, axis=0) if collect == "gather" else context.all_reduce(collect, x)
        v.assign_add(1.0 + all_of.sum())

    empty = per_replica(strategy, lambda _: np.zeros((0, 2), np.float32))
    mr.function(lambda x: strategy.run(replica_step, args=(x,)))(empty)
    assert float(v) == 2.0


def test_a_parameter_without_elements_is_clipped_with_the_others(strategy):
    with strategy.scope():
        v, none = mr.Variable(np.ones(4, np.float32)), mr.Variable(np.zeros((0, 2), np.float32))
        optimizer = mr.optimizers.Adam(0.5, global_clipnorm=1.0)

    def replica_step(x):
        with mr.GradientTape() as tape:
            loss = (v * x).sum() + (none * x).sum()
        optimizer.apply_gradients(zip(tape.gradient(loss, [v, none]), [v, none], strict=True))

    x = per_replica(strategy, lambda replica: np.float32(1 + replica))
    mr.function(lambda x: strategy.run(replica_step, args=(x,)))(x)
    np.testing.assert_allclose(v.numpy(), 0.5, rtol=1e-5)
    assert none.numpy().shape == (0, 2)


def test_a_compiled_run_takes_and_returns_empty_components(strategy):
    empty = per_replica(strategy, lambda _: np.zeros((0, 2), np.float32))
    result = mr.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))(empty)
    assert [one.shape for one in strategy.experimental_local_results(result)] == [(0, 2)] * len(empty.values)


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1", "CPU:2"]], ids=["virtual", "devices"])
@pytest.mark.parametrize("values", [(2**24 + 1, 0.5, 1.0), (np.int32(1), np.float32(1), np.float16(1))], ids=str)
def test_components_of_different_dtypes_are_not_stacked(devices, values):
    """On one device NumPy's promotion would round the integer, and on several JAX's own error has no remedy."""
    strategy = mr.MirroredStrategy(devices, num_replicas=3)
    mixed = per_replica(strategy, lambda replica: values[replica])
    with pytest.raises(ValuesError, match="dtypes int32, float32, float"):
        mr.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))(mixed)
