"""What a compiled step becomes: as many collectives as a program written by hand, and no more work."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import mirrored as mr
from mirrored.topology.device_assignment import AXIS
from strategies.programs import fid

few = pytest.mark.ways(modes=("compiled", "folded"), replicas=(4,))


def count(text: str, operation: str) -> int:
    """How many operations of a kind the optimised HLO has."""
    return len(re.findall(rf" {operation}(?:-start)?\(", text))


def layers():
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = [(6, 8), (8, 8), (8, 3)]
    return [jax.random.normal(key, size) / 4 for key, size in zip(keys, sizes, strict=True)]


def loss(weights, x, y):
    for weight in weights[:-1]:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x @ weights[-1] - y) ** 2)


def by_hand(mesh):
    def body(weights, x, y):
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        value, gradients = jax.lax.pmean((value, gradients), AXIS)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    data = PartitionSpec(AXIS)
    equal = PartitionSpec()
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(equal, data, data), out_specs=equal, check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


@few
def test_a_step_has_as_many_all_reduces_as_one_written_by_hand(way):
    strategy = way.strategy
    with strategy.scope():
        weights = [mr.Variable(w) for w in layers()]

    def replica(x, y):
        value, gradients = jax.value_and_grad(loss)([w.read_value() for w in weights], x, y)
        value, gradients = mr.get_replica_context().all_reduce("MEAN", (value, gradients))
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return value

    x, y = np.ones((way.num_replicas, 5, 6), np.float32), np.zeros((way.num_replicas, 5, 3), np.float32)
    x *= np.arange(way.num_replicas)[:, None, None]
    step = mr.function(lambda a, b: strategy.run(replica, args=(a, b)))
    shares = [strategy.distribute_values_from_function(lambda c, z=z: z[c.replica_id_in_sync_group]) for z in (x, y)]

    reference = by_hand(strategy.device_assignment.mesh)
    flat = [jnp.asarray(z.reshape(-1, *z.shape[2:])) for z in (x, y)]
    expected = reference.lower(layers(), *flat).compile().as_text()
    actual = step.lower(*shares).compile().as_text()
    assert count(actual, "all-reduce") == count(expected, "all-reduce") == 1
    for other in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert count(actual, other) == 0
    assert actual.count("may-alias") + actual.count("must-alias") == 3

    step(*shares)
    updated, _ = reference(layers(), *flat)
    for weight, wanted in zip(weights, updated, strict=True):
        np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-5, atol=1e-7)


@few
def test_what_is_merged_apart_is_still_reduced_together(way):
    """XLA combines all-reduces that do not depend on each other, also of variables aggregated one by one."""
    with way.strategy.scope():
        variables = [mr.Variable(jnp.zeros(4), aggregation="SUM") for _ in range(3)]

    def replica():
        for i, v in enumerate(variables):
            v.assign_add(jnp.ones(4) * (fid() + i))

    step = mr.function(lambda: way.strategy.run(replica))
    assert count(step.lower().compile().as_text(), "all-reduce") == 1


@few
def test_a_step_without_reductions_has_no_collectives(way):
    with way.strategy.scope():
        v = mr.Variable(jnp.ones(4))
        n = mr.Variable(0, synchronization="ON_READ", aggregation="SUM")

    def replica(x):
        n.assign_add(1)
        v.assign(v * 2)
        return x * v

    x = way.strategy.run(lambda: jnp.ones(4))
    text = mr.function(lambda y: way.strategy.run(replica, args=(y,))).lower(x).compile().as_text()
    for operation in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert count(text, operation) == 0


@few
def test_results_and_state_stay_where_they_are(way):
    with way.strategy.scope():
        v = mr.Variable(jnp.ones(4))
        c = mr.Variable(jnp.zeros(2), synchronization="ON_READ", aggregation="SUM")

    def replica(x):
        v.assign(v * 2)
        c.assign_add(jnp.ones(2))
        return x + v

    step = mr.function(lambda y: way.strategy.run(replica, args=(y,)))
    result = step(way.strategy.run(lambda: jnp.ones(4)))
    layout = way.strategy.device_assignment
    assert v._array.sharding == layout.replicated
    assert c._array.sharding == layout.sharded
    assert result.is_stacked
    assert result.stacked(layout).sharding == layout.sharded
    step(result)
    assert step.trace_count == 1


@few
def test_one_program_for_host_arrays_and_for_results_of_earlier_steps(way):
    step = mr.function(lambda y: way.strategy.run(lambda x: x + 1, args=(y,)))
    x = mr.PerReplica([np.zeros(3, np.float32)] * way.num_replicas)
    with way.strategy.scope():
        for _ in range(3):
            x = step(x)
    assert step.trace_count == 1
    assert [c.tolist() for c in x.values] == [[3.0] * 3] * way.num_replicas


@few
def test_several_runs_in_one_function(way):
    with way.strategy.scope():
        v = mr.Variable(1.0)

    @mr.function
    def steps(x):
        for _ in range(2):
            x = way.strategy.run(lambda y: y + v, args=(x,))
            v.assign_add(1.0)
        total = way.strategy.reduce("SUM", x, axis=None)
        way.strategy.run(lambda: v.assign(total))
        return total, v.read_value()

    x = way.strategy.run(lambda: fid() * 0)
    total, read = steps(x)
    assert float(total) == float(read) == float(v) == 3.0 * way.num_replicas


def test_traces_and_programs_of_shapes_are_kept_apart():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    step = mr.function(lambda y: strategy.run(lambda x: jnp.sum(x), args=(y,)))
    for size in (2, 3, 2, 3):
        x = strategy.run(lambda size=size: jnp.ones(size))
        assert [float(c) for c in step(x).values] == [size, size]
    assert step.trace_count == 2
    assert "changed from float32[2, 2] per replica to float32[2, 3] per replica" in step.retrace_reason
