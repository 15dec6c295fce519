"""`ReduceOp` behaves as TensorFlow's enum and can be subclassed."""

from __future__ import annotations

import copy
import enum
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import Adasum, Median, ReduceOp, TrimmedMean
from mirrored.collectives.reduce_op import as_reduce_op, check_reduction, log_label
from mirrored.errors import ArgumentError


class Aggregation(enum.Enum):
    NONE = 0
    SUM = 1
    MEAN = 2


class Largest(ReduceOp):
    def __call__(self, per_replica: Any) -> Any:
        return jnp.max(per_replica, axis=0)


class Weighted(ReduceOp):
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, per_replica: Any) -> Any:
        return self.weight * jnp.sum(per_replica, axis=0)


@pytest.mark.parametrize("spelling", ["sum", "SUM", "Sum", "ReduceOp.SUM", "reduceop.sum", Aggregation.SUM])
def test_spellings_of_sum(spelling: Any) -> None:
    assert as_reduce_op(spelling) is ReduceOp.SUM
    assert ReduceOp(spelling) is ReduceOp.SUM


def test_looks_like_an_enum() -> None:
    assert str(ReduceOp.SUM) == "ReduceOp.SUM"
    assert repr(ReduceOp.MEAN) == "ReduceOp.MEAN"
    assert (ReduceOp.MEAN.name, ReduceOp.MEAN.value) == ("MEAN", "MEAN")
    assert list(ReduceOp) == [ReduceOp.SUM, ReduceOp.MEAN]
    assert len(ReduceOp) == 2
    assert ReduceOp["MEAN"] is ReduceOp.MEAN
    assert ReduceOp.SUM != ReduceOp.MEAN
    assert {ReduceOp.SUM: 1}[ReduceOp("sum")] == 1
    assert isinstance(ReduceOp.SUM, ReduceOp)
    assert ReduceOp.from_variable_aggregation(Aggregation.MEAN) is ReduceOp.MEAN


def test_a_subclass_without_arguments_refuses_them() -> None:
    with pytest.raises(TypeError, match=r"Largest\(\) takes no arguments"):
        type("Largest", (ReduceOp,), {})("sum")


@pytest.mark.parametrize("member", [ReduceOp.SUM, ReduceOp.MEAN], ids=repr)
def test_members_stay_one_object(member: ReduceOp) -> None:
    assert pickle.loads(pickle.dumps(member)) is member
    assert copy.deepcopy(member) is copy.copy(member) is member


@pytest.mark.parametrize("value", ["max", "", 3, None, Aggregation.NONE, int, object()])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="a reduction must be ReduceOp.SUM, ReduceOp.MEAN"):
        as_reduce_op(value)


def test_subclasses_and_callables() -> None:
    stacked = jnp.asarray([[1.0, 5.0], [2.0, 3.0]])
    assert isinstance(as_reduce_op(Largest), Largest)
    assert as_reduce_op(Weighted(2.0)).weight == 2.0
    np.testing.assert_array_equal(as_reduce_op(Largest())(stacked), [2.0, 5.0])
    median = as_reduce_op(jnp.sort)
    assert median == as_reduce_op(jnp.sort)
    assert repr(Largest()) == "ReduceOp.Largest"
    assert as_reduce_op(lambda stacked: stacked[0]).name == "<lambda>"


def test_class_that_needs_arguments_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"the class Weighted cannot be constructed without arguments"):
        as_reduce_op(Weighted)


def test_members_reduce_stacked_values() -> None:
    stacked = jnp.asarray([[1.0, 5.0], [2.0, 3.0]])
    np.testing.assert_array_equal(ReduceOp.SUM(stacked), [3.0, 8.0])
    np.testing.assert_array_equal(ReduceOp.MEAN(stacked), [1.5, 4.0])


@pytest.mark.parametrize("op", [ReduceOp.SUM, "mean", Largest(), Median(), TrimmedMean(1), Adasum()], ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reductions_that_keep_shape_and_dtype_pass(op: Any, dtype: str) -> None:
    check_reduction(op, jax.ShapeDtypeStruct((3, 2), dtype), 4)


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (lambda stacked: jnp.sum(stacked), r"returned float32\[\]"),
        (lambda stacked: stacked[0].astype(jnp.int32), r"returned int32\[3, 2\]"),
        (lambda stacked: [stacked[0]], "returned a list"),
        (lambda stacked: stacked @ jnp.ones(9), "raised TypeError"),
        (TrimmedMean(2), "k=2 for 4 replicas"),
    ],
)
def test_reductions_that_do_not_are_refused(op: Any, found: str) -> None:
    with pytest.raises(ArgumentError, match=found):
        check_reduction(op, jax.ShapeDtypeStruct((3, 2), jnp.float32), 4)


def test_subclass_without_a_rule() -> None:
    class Nothing(ReduceOp):
        pass

    with pytest.raises(ArgumentError, match="Nothing does not define __call__"):
        check_reduction(Nothing(), jax.ShapeDtypeStruct((3,), jnp.float32), 2)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_median_and_trimmed_mean_against_numpy(count: int) -> None:
    stacked = np.random.default_rng(count).normal(size=(count, 5)).astype("f4")
    np.testing.assert_allclose(Median()(stacked), np.median(stacked, 0), rtol=1e-6)
    k = (count - 1) // 2
    expected = np.sort(stacked, 0)[k : count - k].mean(0)
    np.testing.assert_allclose(TrimmedMean(k)(jnp.asarray(stacked)), expected, rtol=1e-6)
    np.testing.assert_allclose(TrimmedMean(0)(jnp.asarray(stacked)), stacked.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.first(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_medians_have_the_bits_of_jax_where_these_do_not_overflow(dtype: str, count: int) -> None:
    random = np.random.default_rng(count).normal(size=(count, 50)).astype("f4")
    special = np.resize(np.float32([np.inf, np.nan, -np.inf, 0.0, -0.0, np.inf, 1.0]), (count, 7))
    values = jnp.asarray(np.concatenate([random, special], 1)).astype(dtype)
    np.testing.assert_array_equal(Median()(values).astype("f4"), jnp.median(values, axis=0).astype("f4"))
    assert Median()(values).dtype == dtype
    largest = jnp.full((count, 2), jnp.finfo(dtype).max, dtype)
    np.testing.assert_array_equal(jax.jit(Median())(largest), largest[0])
    np.testing.assert_array_equal(jax.grad(lambda x: Median()(x).sum())(largest).sum(0), 1.0)


@pytest.mark.first(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("count", [3, 4, 6])
def test_medians_and_trimmed_means_of_integers_are_exact(dtype: str, count: int) -> None:
    limits = np.iinfo(dtype)
    random = np.random.default_rng(count).integers(limits.min, limits.max, (count, 50), dtype, endpoint=True)
    high, low = (np.full((count, 1), one, dtype) for one in (limits.max, limits.min))
    values = np.concatenate([random, high, low, high - 1, low + 1], 1)
    ordered = np.sort(values, 0).astype(object)

    def mean(rows: Any) -> Any:
        return [int(total / abs(total) * (abs(total) // len(rows))) if total else 0 for total in rows.sum(0)]

    for op, kept in (
        (Median(), ordered[(count - 1) // 2 : count // 2 + 1]),
        (TrimmedMean(1), ordered[1:-1]),
        (TrimmedMean(0), ordered),
    ):
        result = op(jnp.asarray(values))
        assert result.dtype == dtype
        assert result.tolist() == mean(kept)


@pytest.mark.parametrize("k", [-1, 0.5, True])
def test_trimmed_mean_checks_k(k: Any) -> None:
    with pytest.raises(ArgumentError, match="k="):
        TrimmedMean(k)


def test_adasum_follows_the_paper() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 6))

    def pair(a: Any, b: Any) -> Any:
        return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b

    adasum = Adasum()
    np.testing.assert_allclose(adasum(jnp.asarray([a, b], jnp.float32)), pair(a, b), rtol=1e-4)
    np.testing.assert_allclose(adasum(jnp.asarray([a, b, c], jnp.float32)), pair(pair(a, b), c), rtol=1e-4)
    np.testing.assert_allclose(adasum(jnp.asarray([a, 0 * a], jnp.float32)), a, rtol=1e-6)
    np.testing.assert_allclose(adasum(jnp.asarray([a] * 4, jnp.float32)), a, rtol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_custom_reduction_along_an_axis_is_refused(replicas: int) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=replicas)
    value = strategy.run(lambda: jnp.arange(3.0))
    with pytest.raises(ArgumentError, match="axis=0 with the custom reduction"):
        strategy.reduce(lambda stacked: stacked.max(0), value, axis=0)


def test_the_name_of_a_function_in_collective_logs_has_no_address() -> None:
    """Workers compare the names, and addresses differ between processes."""

    def largest(stacked: jax.Array) -> jax.Array:
        return jnp.max(stacked, axis=0)

    assert "largest" in log_label(as_reduce_op(largest))
    assert "0x" not in log_label(as_reduce_op(largest))
    assert log_label(ReduceOp.SUM) == "ReduceOp.SUM"
