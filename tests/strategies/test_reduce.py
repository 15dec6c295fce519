"""`Strategy.reduce` and `Strategy.gather`."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import ReduceOp
from mirrored.errors import ArgumentError, ArgumentTypeError, ContextError
from strategies.programs import fid, parts, per_replica, rid

few = pytest.mark.ways(replicas=(4,))
some = pytest.mark.ways(modes=("eager", "compiled"), replicas=(2,))


@pytest.fixture
def two():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


# Reduce


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, "SUM", "sum", "mean", "ReduceOp.MEAN"], ids=str)
@some
def test_spellings_of_the_operation(way, op):
    x = per_replica(way.strategy, [1.0 + 3 * i for i in range(way.num_replicas)])
    result = way.compile(lambda x: way.strategy.reduce(op, x, axis=None))(x)
    total = sum(1.0 + 3 * i for i in range(way.num_replicas))
    assert float(result) == (total if "SUM" in str(op).upper() else total / way.num_replicas)


@pytest.mark.first(7)
def test_reduce_combines_components_with_each_other(way):
    def step(x):
        doubled = way.strategy.run(lambda a: (a * 2, jnp.sum(a)), args=(x,))
        return way.strategy.reduce("SUM", doubled[0], axis=None), way.strategy.reduce("MEAN", doubled[1], axis=None)

    n = way.num_replicas
    x = per_replica(way.strategy, [[1.0 * i, 2.0] for i in range(n)])
    if n == 1:
        x = way.strategy.run(lambda a: a, args=(x,))
    total, mean = way.compile(step)(x)
    assert total.tolist() == [float(n * (n - 1)), 4.0 * n]
    assert float(mean) == pytest.approx((n - 1) / 2 + 2)


@few
def test_result_is_a_plain_array_on_all_devices(way):
    result = way.compile(lambda: way.strategy.reduce("SUM", way.strategy.run(fid), axis=None))()
    assert isinstance(result, jax.Array)
    assert result.is_fully_replicated


@pytest.mark.parametrize(
    ("op", "axis", "expected"),
    [
        ("SUM", 0, [7.0, 17.0]),
        ("MEAN", 0, [7 / 4, 17 / 4]),
        ("SUM", 1, [9.0, 15.0]),
        ("MEAN", -1, [9 / 4, 15 / 4]),
        ("MEAN", (0, 1), 3.0),
        ("SUM", [0, 1], 24.0),
    ],
    ids=str,
)
@some
def test_axes(way, op, axis, expected):
    x = per_replica(way.strategy, [[[1.0, 2.0], [2.0, 3.0]], [[1.0, 5.0], [3.0, 7.0]]])
    result = way.compile(lambda x: way.strategy.reduce(op, x, axis=axis))(x)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 2), (3, 1), (2, 0), (0, 1)], ids=str)
def test_mean_weighs_uneven_shares_by_their_elements(two, sizes):
    shares = [np.arange(size, dtype=np.float32) + 10 * r for r, size in enumerate(sizes)]
    x = two.run(lambda: jnp.asarray(shares[rid()]))
    whole = np.concatenate(shares)
    assert float(two.reduce("MEAN", x, axis=0)) == pytest.approx(float(whole.mean()))
    assert float(two.reduce("SUM", x, axis=0)) == pytest.approx(float(whole.sum()))


def test_mean_of_nothing_is_nan(two):
    x = two.run(lambda: jnp.zeros(0))
    assert float(two.reduce("SUM", x, axis=0)) == 0.0
    assert np.isnan(float(two.reduce("MEAN", x, axis=0)))


@some
def test_integers(way):
    def step():
        ids = way.strategy.run(lambda: jnp.asarray(rid(), jnp.int32) + 1)
        rows = way.strategy.run(lambda: jnp.arange(3) + rid())
        reduce = way.strategy.reduce
        return reduce("SUM", ids, axis=None), reduce("MEAN", ids, axis=None), reduce("MEAN", rows, axis=0)

    total, mean, rows = way.compile(step)()
    assert (int(total), total.dtype) == (3, jnp.int32)
    assert (float(mean), mean.dtype) == (1.5, jnp.float32)
    assert (float(rows), rows.dtype) == (1.5, jnp.float32)


@some
def test_structures_are_reduced_leaf_by_leaf(way):
    x = per_replica(way.strategy, [1.0, 2.0])
    tree = {"a": x, "b": [x, None], "c": (jnp.float32(4.0),)}
    result = way.compile(lambda t: way.strategy.reduce("MEAN", t, axis=None))(tree)
    assert jax.tree.map(float, result) == {"a": 1.5, "b": [1.5, None], "c": (4.0,)}


class Largest(ReduceOp):
    def __call__(self, per_replica):
        return jnp.max(per_replica, axis=0)


@pytest.mark.parametrize("op", [Largest(), lambda stacked: jnp.max(stacked, axis=0)], ids=["subclass", "callable"])
@few
def test_custom_reductions(way, op):
    step = way.compile(lambda: way.strategy.reduce(op, way.strategy.run(fid), axis=None))
    assert float(step()) == way.num_replicas - 1
    inside = way.compile(lambda: way.strategy.run(lambda: mr.get_replica_context().all_reduce(op, fid())))
    assert parts(way.strategy, inside()) == [way.num_replicas - 1.0] * way.num_replicas


def test_plain_values(two):
    assert float(two.reduce("MEAN", jnp.float32(1.5), axis=None)) == 1.5
    assert float(two.reduce("MEAN", jnp.array([1.0, 3.0]), axis=0)) == 2.0
    for axis in (None, 0):
        with pytest.raises(ArgumentError, match=r"ReduceOp\.SUM was requested for a value that is not per replica"):
            two.reduce("SUM", jnp.ones(2), axis=axis)


@pytest.mark.parametrize(
    ("op", "axis", "message"),
    [
        ("MAX", None, "'MAX'"),
        (None, None, "None"),
        (3, None, "3"),
        ("SUM", 5, r"axis=5 for components of shape \(2,\)"),
        ("MEAN", -2, r"axis=-2 for components of shape \(2,\)"),
        ("SUM", "0", "axis='0'"),
        ("SUM", 1.5, "axis=1.5"),
        ("SUM", True, "axis=True"),
        ("SUM", (0, 0), r"axis=\(0, 0\) names a dimension .* twice"),
        ("MEAN", (0, -1), r"axis=\(0, -1\) names a dimension .* twice"),
    ],
    ids=str,
)
def test_bad_arguments(two, op, axis, message):
    x = per_replica(two, [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ArgumentError, match=message):
        two.reduce(op, x, axis=axis)


class Batch(dict[str, Any]):
    """JAX takes an object of a subclass of dict as one leaf."""


class Rows(list[Any]):
    """A subclass of list, which is a leaf, too."""


_OBJECTS = {
    "Batch": lambda x: Batch(loss=x),
    "Rows": lambda x: Rows([x]),
    "SimpleNamespace": lambda x: types.SimpleNamespace(loss=x),
    "str": lambda x: "a",
    "ndarray": lambda x: np.array(["a"]),
}


@pytest.mark.parametrize("kind", list(_OBJECTS))
@pytest.mark.parametrize("devices", [1, 2])
def test_objects_cannot_be_combined(kind, devices):
    two = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=2)
    x, make = per_replica(two, [1.0, 2.0]), _OBJECTS[kind]
    found = "an array of dtype <U1" if kind == "ndarray" else f"of type {kind}"
    message = f"the value is {found}\n(?s:.*)a subclass of list or dict is not registered"
    for value in (two.run(make, args=(x,)), make(x)):
        with pytest.raises(ArgumentTypeError, match=rf"Strategy\.reduce: {message}"):
            two.reduce("MEAN", value, axis=None)
        with pytest.raises(ArgumentTypeError, match=rf"Strategy\.gather: {message}"):
            two.gather(value, axis=0)
    for run in (two.run, mr.function(two.run)):
        with pytest.raises(ArgumentTypeError, match=rf"ReplicaContext\.all_reduce: {message}"):
            run(lambda x: mr.get_replica_context().all_reduce("SUM", make(x)), (x,))
        with pytest.raises(ArgumentTypeError, match=rf"ReplicaContext\.all_gather: {message}"):
            run(lambda x: mr.get_replica_context().all_gather(make(x), 0), (x,))


@pytest.mark.parametrize("axis", ["0", 1.5, True, None], ids=str)
def test_an_axis_of_gather_is_an_integer(two, axis):
    with pytest.raises(ArgumentError, match=rf"Strategy.gather: axis={axis!r}\n.*must be an integer"):
        two.gather(per_replica(two, [[1.0], [3.0]]), axis=axis)
    with pytest.raises(ArgumentError, match=rf"ReplicaContext.all_gather: axis={axis!r}\n.*must be an integer"):
        two.run(lambda: mr.get_replica_context().all_gather(jnp.ones(1), axis))
    assert two.gather(per_replica(two, [[1.0], [3.0]]), axis=np.int32(0)).tolist() == [1.0, 3.0]


def test_axis_is_required(two):
    with pytest.raises(TypeError, match="axis"):
        two.reduce("SUM", two.run(fid))


def test_another_strategys_scope_refuses(two):
    other = mr.MirroredStrategy(["CPU:2", "CPU:3"])
    x = two.run(lambda: jnp.ones(1))
    with other.scope():
        for use in (lambda: two.reduce("SUM", x, axis=None), lambda: two.gather(x, axis=0), lambda: two.run(fid)):
            with pytest.raises(ContextError, match="inside the scope of"):
                use()


# Gather


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@few
@pytest.mark.first(8)
def test_gather_concatenates_in_replica_order_along_each_axis(way, axis):
    single = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    step = way.compile(lambda: way.strategy.gather(way.strategy.run(lambda: single + 10 * fid()), axis=axis))
    expected = np.concatenate([single + 10.0 * r for r in range(way.num_replicas)], axis=axis)
    np.testing.assert_array_equal(np.asarray(step()), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_of_uneven_sizes(two, axis):
    def share():
        shape = [2, 2]
        shape[axis] = 2 * rid()
        return jnp.full(shape, fid())

    result = two.gather(two.run(share), axis=axis)
    assert result.shape == (2, 2)
    assert np.unique(result).tolist() == [1.0]


@some
def test_gather_of_a_structure_and_of_plain_values(way):
    x = per_replica(way.strategy, [[1], [2]])
    result = way.compile(lambda t: way.strategy.gather(t, axis=0))({"a": x, "b": (x, jnp.ones(2))})
    assert result["a"].tolist() == result["b"][0].tolist() == [1, 2]
    assert result["b"][1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("share", "axis"),
    [
        (lambda: jnp.full((1, 1 + rid()), 0.0), 0),
        (lambda: jnp.ones(1) if rid() else jnp.ones((1, 2)), 0),
        (fid, 0),
        (lambda: jnp.ones((1, 2)), 2),
        (lambda: jnp.ones((1, 2)), -3),
    ],
    ids=["sizes", "ranks", "scalars", "axis", "negative axis"],
)
def test_gathers_that_do_not_fit(two, share, axis):
    x = two.run(share)
    with pytest.raises(ArgumentError, match=rf"Strategy\.gather: axis={axis} for components of shapes"):
        two.gather(x, axis=axis)


def test_gather_of_a_scalar_in_compiled_code(two):
    with pytest.raises(ArgumentError, match=r"Strategy\.gather: axis=0 for components of shapes \(\)"):
        mr.function(lambda: two.gather(two.run(fid), axis=0))()


# Local results


def test_local_results(two):
    with two.scope():
        v = mr.Variable([1.0, 2.0])
    x = two.run(fid)
    results = two.experimental_local_results
    assert results(3) == (3,)
    assert results(None) == (None,)
    assert [float(c) for c in results(x)] == [0.0, 1.0]
    assert [c.container for c in results(v)] == [v, v]
    mixed = results({"x": x, "plain": 2})
    assert [(float(one["x"]), one["plain"]) for one in mixed] == [(0.0, 2), (1.0, 2)]


# The default strategy


def test_the_default_strategy_passes_through():
    default = mr.get_strategy()
    assert default.num_replicas_in_sync == 1
    assert default.run(lambda x: x + 1, args=(1,)) == 2
    assert default.experimental_local_results(5) == (5,)
    assert float(default.reduce("SUM", 3.0, axis=None)) == 3.0
    assert float(default.reduce("MEAN", jnp.array([1.0, 3.0]), axis=0)) == 2.0
    assert default.reduce("SUM", jnp.array([[1.0, 3.0]]), axis=1).tolist() == [4.0]
    assert default.gather(jnp.array([1, 2]), axis=0).tolist() == [1, 2]
    with default.scope():
        assert not isinstance(mr.Variable(1.0), mr.DistributedValues)
        assert not mr.has_strategy()
        assert not mr.in_cross_replica_context()


def test_components_of_different_shapes_are_refused_by_name():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    uneven = strategy.run(lambda: jnp.ones([1 + mr.get_replica_context().replica_id_in_sync_group]))
    with pytest.raises(
        mr.errors.StructureError, match=r"Strategy.reduce: the components have the shapes \(1,\), \(2,\)"
    ):
        strategy.reduce("SUM", uneven, axis=None)
    with pytest.raises(mr.errors.StructureError, match=r"ReplicaContext.all_reduce: the components have the shapes"):
        strategy.run(
            lambda: mr.get_replica_context().all_reduce(
                "SUM", jnp.ones([1 + mr.get_replica_context().replica_id_in_sync_group])
            )
        )
