"""Updates of rows: the values that TensorFlow gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import MirroredError

ADDED = {"SUM": [2.0, 3.0, 1.0], "MEAN": [1.5, 2.0, 1.0], "ONLY_FIRST_REPLICA": [2.0, 1.0, 1.0]}


def rows(values, indices):
    return tf.IndexedSlices(jnp.asarray(values), jnp.asarray(indices), (3,))


def of_replica():
    replica = mr.get_replica_context().replica_id_in_sync_group
    return rows(jnp.reshape(jnp.asarray(replica + 1, "float32"), [1]), jnp.reshape(jnp.asarray(replica), [1]))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("scatter_add", [3.0, 1.0, 4.0]),
        ("scatter_sub", [-1.0, 1.0, -2.0]),
        ("scatter_update", [2.0, 1.0, 3.0]),
        ("scatter_max", [2.0, 1.0, 3.0]),
        ("scatter_min", [1.0, 1.0, 1.0]),
        ("scatter_mul", [2.0, 1.0, 3.0]),
        ("scatter_div", [0.5, 1.0, 1 / 3]),
    ],
)
def test_without_a_strategy(method, expected):
    v = mr.Variable(jnp.ones(3))
    getattr(v, method)(rows([2.0, 3.0], [0, 2]))
    assert v.numpy().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("aggregation", sorted(ADDED))
def test_additions_follow_the_aggregation(aggregation, compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(jnp.ones(3), aggregation=aggregation)

    def step():
        return strategy.run(lambda: v.scatter_add(of_replica()))

    (mr.function(step) if compiled else step)()
    assert v.numpy().tolist() == ADDED[aggregation]


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
def test_others_are_refused_where_aggregation_gives_them_no_meaning(aggregation):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(jnp.ones(3), aggregation=aggregation)
    with pytest.raises(NotImplementedError, match=r"scatter_max.*aggregation"):
        strategy.run(lambda: v.scatter_max(of_replica()))
    assert v.numpy().tolist() == [1, 1, 1]


def test_sync_on_read_variables_refuse():
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        v = mr.Variable(jnp.ones(3), synchronization="ON_READ", aggregation="SUM")
    with pytest.raises(NotImplementedError, match="sync-on-read"):
        v.scatter_add(rows([1.0], [0]))


def scaled_by_all(method, aggregation, start, factor, *, compiled):
    """Replica r applies `factor(r)` to row r."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(start, aggregation=aggregation)

    def own_row():
        replica = mr.get_replica_context().replica_id_in_sync_group
        values = jnp.reshape(jnp.asarray(factor(replica), v.dtype), [1])
        return getattr(v, method)(rows(values, jnp.reshape(jnp.asarray(replica), [1])))

    def step():
        return strategy.run(own_row)

    results = (mr.function(step) if compiled else step)()
    assert all(part.tolist() == v.numpy().tolist() for part in strategy.local_results(results))
    return v.numpy().tolist()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_factors_of_all_replicas_apply(compiled):
    assert scaled_by_all("scatter_mul", "MEAN", [2.0, 1.0, 1.0], lambda r: r + 2, compiled=compiled) == [2.0, 1.5, 1.0]
    assert scaled_by_all("scatter_mul", "SUM", [2.0, 1.0, 1.0], lambda r: r + 2, compiled=compiled) == [4.0, 3.0, 1.0]
    assert scaled_by_all("scatter_div", "SUM", [1, 6, 1], lambda r: r + 2, compiled=compiled) == [0, 2, 1]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("method", "start", "values", "dtype", "expected"),
    [
        ("scatter_div", 60000.0, [300.0, 300.0], "float16", 0.6667),
        ("scatter_mul", 1e-4, [300.0, 300.0], "float16", 9.0),
        ("scatter_div", 1e38, [1e30, 1e30], "float32", 1e-22),
        ("scatter_div", 7, [65536, 65536], "int32", 0),
        ("scatter_div", -100, [7, 3, 1], "int32", -4),
    ],
)
def test_repeated_factors_apply_one_after_another(method, start, values, dtype, expected, compiled):
    v = mr.Variable(jnp.asarray([1, start], dtype))

    def step():
        getattr(v, method)(rows(jnp.asarray(values, dtype), [1] * len(values)))

    (mr.function(step) if compiled else step)()
    np.testing.assert_allclose(v.numpy().astype("float64"), [1.0, expected], rtol=0.01)


@pytest.mark.parametrize("method", ["scatter_mul", "scatter_div"])
def test_factors_of_several_axes_of_indices_and_of_none(method):
    v = mr.Variable(jnp.full((3, 2), 8.0))
    getattr(v, method)(rows(jnp.full((2, 2, 2), 2.0), [[0, 2], [0, 2]]))
    scaled = 32.0 if method == "scatter_mul" else 2.0
    assert v.numpy().tolist() == [[scaled] * 2, [8.0] * 2, [scaled] * 2]
    getattr(v, method)(rows(jnp.zeros((0, 2)), jnp.zeros((0,), jnp.int32)))
    assert v.numpy().tolist() == [[scaled] * 2, [8.0] * 2, [scaled] * 2]


@pytest.mark.parametrize("method", ["scatter_mul", "scatter_div"])
def test_factors_have_no_meaning_for_a_function_as_the_aggregation(method):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(jnp.ones(3), aggregation=lambda stacked: jnp.max(stacked, axis=0))
    with pytest.raises(NotImplementedError, match=f"{method}.*aggregation"):
        strategy.run(lambda: getattr(v, method)(of_replica()))
    getattr(v, method)(rows([1.0], [0]))
    assert v.numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_in_cross_replica_context_rows_are_updated_once(aggregation):
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        v = mr.Variable([2.0, 1.0, 1.0], aggregation=aggregation)
    v.scatter_mul(rows([3.0, 3.0], [0, 0]))
    v.scatter_div(rows([2.0], [0]))
    v.scatter_add(rows([1.0], [1]))
    assert v.numpy().tolist() == [9.0, 2.0, 1.0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "use",
    [
        lambda v, where: v.gather_nd(where),
        lambda v, where: v.scatter_nd_update(where, jnp.ones(1)),
        lambda v, where: v.scatter_nd_add(where, jnp.ones(1)),
        lambda v, where: tf.gather_nd(v.read_value(), where),
        lambda v, where: tf.gather_nd(v.read_value(), where, bad_indices_policy="IGNORE"),
        lambda v, where: tf.tensor_scatter_nd_update(v.read_value(), where, jnp.ones(1)),
        lambda v, where: tf.scatter_nd(where, jnp.ones(1), v.shape),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_an_index_vector_longer_than_the_rank_is_refused(use, shape, compiled):
    v = mr.Variable(jnp.ones(shape))
    where = jnp.ones((1, len(shape) + 1), jnp.int32)
    call = mr.function(lambda: use(v, where)) if compiled else lambda: use(v, where)
    with pytest.raises(MirroredError, match="at most one entry per axis"):
        call()


def test_the_positions_in_a_batch_may_exceed_the_dtype_of_the_indices():
    v = mr.Variable(jnp.zeros((300, 2)))
    values = jnp.arange(300.0)[:, None]
    v.batch_scatter_update(tf.IndexedSlices(values, jnp.ones((300, 1), jnp.uint8)))
    assert v.numpy()[:, 1].tolist() == list(range(300))
