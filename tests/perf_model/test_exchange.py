"""The collectives of a step, and their modeled time on a network."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from mirrored.perf_model import Exchange, Network
from mirrored.perf_model.exchange import exchanges_in
from mirrored.topology.device_assignment import AXIS

NETWORK = Network(bandwidth_bytes_per_second=1e9, latency_seconds=1e-6)


def test_large_sums_take_the_ring():
    exchange = Exchange("psum", 4, 1_000_000_000)
    assert exchange.seconds(NETWORK) == pytest.approx(2 * (0.75 + 3e-6))


def test_small_sums_take_the_tree():
    assert Exchange("psum", 1024, 4).seconds(NETWORK) == pytest.approx(2 * 10 * (4e-9 + 1e-6))


def test_gathering_passes_once_and_alone_is_free():
    assert Exchange("all_gather", 4, 1_000_000_000).seconds(NETWORK) == pytest.approx(0.75 + 3e-6)
    assert Exchange("psum", 1, 1_000_000_000).seconds(NETWORK) == 0.0


def test_in_a_loop_it_happens_each_time():
    assert Exchange("psum", 4, 1000, times=5).seconds(NETWORK) == pytest.approx(
        5 * Exchange("psum", 4, 1000).seconds(NETWORK)
    )


def traced(body, devices):
    mesh = AbstractMesh((devices,), (AXIS,), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(AXIS)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped).trace(jax.ShapeDtypeStruct((devices * 8,), jnp.float32)).jaxpr


def test_sums_of_one_kind_are_merged_and_those_in_loops_counted():
    def body(x):
        y = jax.lax.psum(x, AXIS) + jax.lax.psum(2 * x[:4], AXIS).sum()
        z, _ = jax.lax.scan(lambda c, _: (jax.lax.psum(c, AXIS), None), y, None, length=3)
        return z + jax.lax.all_gather(x, AXIS, tiled=True).sum()

    found = {(one.kind, one.times): one for one in exchanges_in(traced(body, 64), 64)}
    assert len(found) == 3
    assert found["psum", 1] == Exchange("psum", 64, 4 * (8 + 4), merged=2, times=1)
    assert found["psum", 3] == Exchange("psum", 64, 4 * 8, merged=1, times=3)
    assert found["all_gather", 1].payload_bytes == 4 * 8 * 64


def test_groups_are_exchanges_of_their_own():
    def body(x):
        x = jax.lax.psum(x, AXIS, axis_index_groups=[[0, 1], [2, 3]])
        return jax.lax.psum(x, AXIS, axis_index_groups=[[0, 2], [1, 3]])

    assert [one.group_size for one in exchanges_in(traced(body, 4), 4)] == [2, 2]
