"""Every algorithm: correct values on every device, the documented collectives, gradients, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collectives.spmd import collectives_in, group_of, over_devices, reduction, same_bits
from mirrored.analysis.replication_check import Origin, check_replication
from mirrored.collectives import (
    AllReduce,
    CrossDeviceOps,
    Group,
    HierarchicalCopyAllReduce,
    Median,
    NcclAllReduce,
    OrderedTree,
    ReduceOp,
    ReductionToOneDevice,
)
from mirrored.errors import ArgumentError, StructureError

ALGORITHMS: list[CrossDeviceOps] = [
    AllReduce(),
    NcclAllReduce(),
    NcclAllReduce(num_packs=2),
    NcclAllReduce(num_packs=0),
    HierarchicalCopyAllReduce(),
    HierarchicalCopyAllReduce(num_packs=0),
    ReductionToOneDevice(),
    OrderedTree(),
]
SPLITS = [(1, 8), (2, 8), (4, 8), (8, 8), (1, 6), (2, 6), (3, 6), (6, 6), (3, 3), (5, 5), (1, 1)]
SHAPES = [(5, 3), (), (7,), (0,), (2, 0, 3), (16,)]


def arrays_of(replicas: int, dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-8, 8, size=(replicas, *shape)).astype(dtype) for shape in SHAPES]


@pytest.mark.parametrize(("devices", "replicas"), SPLITS, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.sampled(4)
@pytest.mark.first(4)
def test_sum_and_mean_on_every_device(algorithm: CrossDeviceOps, devices: int, replicas: int) -> None:
    arrays = arrays_of(replicas)  # whole numbers: sums are exact in any order
    for op, expected in ((ReduceOp.SUM, [a.sum(0) for a in arrays]), (ReduceOp.MEAN, [a.mean(0) for a in arrays])):
        results = reduction(algorithm, op, devices, replicas, len(arrays))(*arrays)
        for result, value in zip(results, expected, strict=True):
            assert result.shape == (devices, *value.shape)
            np.testing.assert_allclose(result, np.broadcast_to(value, result.shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float16", "complex64", "uint8"])
@pytest.mark.parametrize("algorithm", ALGORITHMS[::2] + [OrderedTree()], ids=repr)
@pytest.mark.first(6)
def test_dtypes(algorithm: CrossDeviceOps, dtype: str) -> None:
    array = np.arange(4 * 3).reshape(4, 3).astype(dtype)
    total, mean = (reduction(algorithm, op, 2, 4, 1)(array)[0] for op in (ReduceOp.SUM, ReduceOp.MEAN))
    assert total.dtype == array.dtype
    np.testing.assert_array_equal(np.asarray(total[0], np.complex64), array.astype(np.complex64).sum(0))
    assert mean.dtype == (jnp.float32 if np.issubdtype(array.dtype, np.integer) else array.dtype)
    np.testing.assert_allclose(np.asarray(mean[0], np.complex64), array.astype(np.complex64).mean(0))


@pytest.mark.parametrize("dtype", ["complex64", "float32", "int32"])
@pytest.mark.parametrize(("devices", "replicas"), [(2, 2), (2, 4), (4, 4), (3, 6)], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS[:3] + ALGORITHMS[4:5] + ALGORITHMS[6:], ids=repr)
@pytest.mark.sampled(3)
def test_sum_of_constants(algorithm: CrossDeviceOps, devices: int, replicas: int, dtype: str) -> None:
    """XLA aborts the process when it compiles a plain all-reduce of a complex constant on CPUs."""
    group = group_of(devices, replicas)

    def body(x: jax.Array) -> list[jax.Array]:
        components = [jnp.full(2, 3, dtype) for _ in range(group.local)]
        return [result + x[0] for result in algorithm.reduce_arrays(ReduceOp.SUM, [components], group)]

    add = over_devices(body, devices, stacked=1, bit_identical=algorithm.requires_bit_identity)
    np.testing.assert_array_equal(add(np.zeros((replicas, 2), dtype))[0], np.full(2, 3 * replicas, dtype))


COLLECTIVES = [
    (AllReduce(), 4, {"all-reduce": 1}),
    (NcclAllReduce(), 4, {"all-reduce": 1}),
    (HierarchicalCopyAllReduce(), 4, {"reduce-scatter": 2, "all-gather": 1}),
    (HierarchicalCopyAllReduce(), 3, {"reduce-scatter": 1, "all-gather": 1}),
    (ReductionToOneDevice(), 4, {"all-gather": 3}),
    (OrderedTree(), 2, {"all-reduce": 1}),
    (OrderedTree(), 4, {"all-reduce": 2}),
    (OrderedTree(), 8, {"all-reduce": 3}),
    (OrderedTree(), 3, {"all-to-all": 1, "all-gather": 1}),
]


@pytest.mark.parametrize(("algorithm", "devices", "expected"), COLLECTIVES, ids=str)
def test_collectives_compiled_to(algorithm: CrossDeviceOps, devices: int, expected: dict[str, int]) -> None:
    arrays = [np.ones((devices, 40, 3), "f4"), np.ones((devices, 7), "f4"), np.ones((devices, 30, 30), "f4")]
    compiled = reduction(algorithm, ReduceOp.SUM, devices, devices, 3).lower(*arrays).compile()
    assert collectives_in(compiled.as_text()) == expected


def test_packs_are_honoured() -> None:
    arrays = [np.ones((2, size), "f4") for size in (10, 10, 10, 10)]

    def reduced_sizes(num_packs: int) -> list[int]:
        lowered = reduction(NcclAllReduce(num_packs), ReduceOp.SUM, 2, 2, 4)
        jaxpr = str(jax.make_jaxpr(lowered)(*arrays))
        return [int(line.split("f32[")[1].split("]")[0]) for line in jaxpr.splitlines() if "psum" in line]

    assert reduced_sizes(1) == [40]
    assert reduced_sizes(2) == [20, 20]
    assert reduced_sizes(0) == [10, 10, 10, 10]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_one_device_needs_no_collective(algorithm: CrossDeviceOps) -> None:
    compiled = reduction(algorithm, ReduceOp.SUM, 1, 4, 1).lower(np.ones((4, 9), "f4")).compile()
    assert collectives_in(compiled.as_text()) == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize(("devices", "replicas"), [(4, 4), (2, 4), (3, 6), (4, 12)])
def test_result_is_proven_synchronous(algorithm: CrossDeviceOps, devices: int, replicas: int) -> None:
    group = group_of(devices, replicas)

    def body(*components: Any) -> list[Any]:
        return algorithm.reduce_arrays(ReduceOp.MEAN, [list(components)], group)

    closed = jax.make_jaxpr(body, axis_env=[(group.axis, devices)])(*[np.ones((6, 2), "f4")] * group.local)
    assert check_replication(closed, [Origin("batch", True)] * group.local).same(closed.jaxpr.outvars)


@pytest.mark.first(20)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN], ids=repr)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize(("devices", "replicas"), [(4, 4), (2, 4), (1, 4), (3, 6)])
def test_gradient_is_the_all_reduce_of_the_upstream_gradient(
    algorithm: CrossDeviceOps, op: ReduceOp, devices: int, replicas: int
) -> None:
    group = group_of(devices, replicas)
    upstream = np.random.default_rng(0).integers(-5, 5, size=(replicas, 3)).astype("f4")

    def body(x: Any, u: Any) -> Any:
        def reduced(components: list[Any]) -> list[Any]:
            return algorithm.all_reduce(op, [components], group)[0]

        _, pullback = jax.vjp(reduced, [x[k] for k in range(group.local)])
        return jnp.stack(pullback([u[k] for k in range(group.local)])[0])

    gradients = over_devices(body, devices, stacked=2, equal=False)(np.ones((replicas, 3), "f4"), upstream)
    expected = upstream.sum(0) / (replicas if op is ReduceOp.MEAN else 1)
    np.testing.assert_allclose(gradients, np.broadcast_to(expected, gradients.shape), rtol=1e-6, atol=1e-6)


def test_second_derivative_through_the_ordered_tree() -> None:
    group = Group(None, 1, 2)

    def loss(x: Any) -> Any:
        return OrderedTree().reduce_arrays(ReduceOp.SUM, [[x**3, x]], group)[0] ** 2

    np.testing.assert_allclose(jax.grad(jax.grad(loss))(2.0), jax.grad(jax.grad(lambda x: (x**3 + x) ** 2))(2.0))


@pytest.mark.first(12)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_custom_reduction_sees_all_components_in_replica_order(algorithm: CrossDeviceOps, devices: int) -> None:
    array = np.random.default_rng(0).normal(size=(4, 5)).astype("f4")
    (median,) = reduction(algorithm, Median(), devices, 4, 1)(array)
    assert all(same_bits([row], [np.median(array, 0)]) for row in median)
    (last,) = reduction(algorithm, lambda stacked: stacked[-1], devices, 4, 1)(array)
    assert all(same_bits([row], [array[3]]) for row in last)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_gather_is_in_replica_order(devices: int) -> None:
    array = np.arange(24.0, dtype=np.float32).reshape(4, 2, 3)
    group = group_of(devices, 4)

    def body(part: Any) -> Any:
        return AllReduce().gather([list(part)], 1, group)[0]

    result = over_devices(body, devices, stacked=1)(array)
    np.testing.assert_array_equal(result, np.concatenate(list(array), 1))


def test_accumulation_function_is_used() -> None:
    algorithm = ReductionToOneDevice(accumulation_fn=lambda values: max(values, key=id) * 0 + len(values))
    (result,) = reduction(algorithm, ReduceOp.SUM, 2, 4, 1)(np.ones((4, 3), "f4"))
    np.testing.assert_array_equal(result, np.full((2, 3), 4.0))


@pytest.mark.parametrize(
    "add", [lambda parts: jnp.sum(jnp.stack(parts)), lambda parts: sum(parts).astype("f2"), lambda parts: 1.0]
)
def test_accumulation_function_must_keep_the_shape_and_not_narrow_the_dtype(add: Any) -> None:
    """A gradient that had become a scalar was broadcast in the update, silently."""
    with pytest.raises(ArgumentError, match="accumulation_fn returned"):
        ReductionToOneDevice(accumulation_fn=add).reduce_arrays(ReduceOp.SUM, [[jnp.ones(3)] * 2], Group(None, 1, 2))


@pytest.mark.parametrize(
    ("add", "dtype"),
    [
        (lambda parts: sum(part.astype("f4") for part in parts), "bfloat16"),
        (lambda parts: jnp.sum(jnp.stack(parts), axis=0), "int8"),
    ],
)
def test_accumulation_function_may_add_in_a_wider_dtype(add: Any, dtype: str) -> None:
    algorithm = ReductionToOneDevice(accumulation_fn=add)
    first = algorithm.reduce_arrays(ReduceOp.SUM, [[jnp.full(3, 100, dtype)] * 2], Group(None, 1, 2))[0][0]
    np.testing.assert_array_equal(first, np.full(3, 200.0))


def test_components_of_different_shapes_are_refused() -> None:
    with pytest.raises(StructureError, match=r"the components differ: float32\[2\], float32\[3\]"):
        AllReduce().reduce_arrays(ReduceOp.SUM, [[jnp.ones(2), jnp.ones(3)]], Group(None, 1, 2))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_booleans_are_refused(op: str) -> None:
    with pytest.raises(ArgumentError, match="booleans have no sum and no mean"):
        AllReduce().reduce_arrays(op, [[jnp.array(True)] * 2], Group(None, 1, 2))


def test_custom_reduction_that_changes_the_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"(?s)returned float32\[\].*float32\[3\]"):
        AllReduce().reduce_arrays(jnp.sum, [[jnp.ones(3)] * 2], Group(None, 1, 2))


@pytest.mark.parametrize("make", [NcclAllReduce, HierarchicalCopyAllReduce])
@pytest.mark.parametrize("num_packs", [-1, 1.5, True, "1"])
def test_num_packs_is_checked(make: Any, num_packs: Any) -> None:
    with pytest.raises(ArgumentError, match="num_packs="):
        make(num_packs)


def test_algorithms_are_found_again_by_value() -> None:
    assert NcclAllReduce(2) == NcclAllReduce(2) != NcclAllReduce(3)
    assert len({AllReduce(), AllReduce(), OrderedTree(), OrderedTree()}) == 2


def test_nothing_to_reduce() -> None:
    for algorithm in ALGORITHMS:
        assert algorithm.reduce_arrays(ReduceOp.SUM, [], Group(None, 1, 2)) == []
