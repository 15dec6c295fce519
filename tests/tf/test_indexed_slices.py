"""Rows over replicas: concatenated, never added element by element."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import Median
from mirrored.errors import ArgumentError, StructureError
from mirrored.tf import IndexedSlices


def replica():
    return mr.get_replica_context().replica_id_in_sync_group


def rows():
    """Row 1 of replica 0 is [1, 2]; rows 1 and 3 of replica 1 would be the next ones."""
    values = jnp.asarray([[1.0, 2.0]]) + 2.0 * replica()
    return IndexedSlices(values, jnp.reshape(jnp.asarray(1 + 2 * replica()), [1]), (5, 2))


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def both_ways(function):
    return [function, mr.function(function)]


@pytest.mark.parametrize(("op", "values"), [("SUM", [[1, 2], [3, 4]]), ("MEAN", [[0.5, 1], [1.5, 2]])])
def test_reduce_gives_the_rows_of_all_replicas(strategy, op, values):
    for program in both_ways(lambda: strategy.reduce(op, strategy.run(rows), axis=None)):
        result = program()
        np.testing.assert_array_equal(result.values, values)
        np.testing.assert_array_equal(result.indices, [1, 3])
        assert result.dense_shape == (5, 2)


def test_reduce_of_a_structure_keeps_dense_leaves(strategy):
    given = strategy.run(lambda: (jnp.float32(replica()), [rows()]))
    dense, (sparse,) = strategy.reduce("SUM", given, axis=None)
    assert float(dense) == 1.0
    np.testing.assert_array_equal(sparse.indices, [1, 3])


@pytest.mark.parametrize(("op", "values"), [("SUM", [[1, 2], [3, 4]]), ("MEAN", [[0.5, 1], [1.5, 2]])])
def test_all_reduce_gives_every_replica_all_rows(strategy, op, values):
    def program():
        return mr.get_replica_context().all_reduce(op, (rows(), jnp.float32(2.0)))

    for way in (program, mr.function(program)):
        sparse, dense = strategy.run(way)
        for part in strategy.local_results(sparse):
            np.testing.assert_array_equal(part.values, values)
            np.testing.assert_array_equal(part.indices, [1, 3])
        assert [float(one) for one in strategy.local_results(dense)] == ([4.0] * 2 if op == "SUM" else [2.0] * 2)


def test_replicas_may_have_different_numbers_of_rows(strategy):
    def uneven():
        return IndexedSlices(jnp.ones([1 + replica(), 2]), jnp.arange(1 + replica()), (5, 2))

    result = strategy.reduce("SUM", strategy.run(uneven), axis=None)
    np.testing.assert_array_equal(result.to_dense()[:2], [[2, 2], [1, 1]])


def test_rows_are_made_dense(strategy):
    result = mr.function(lambda: strategy.reduce("SUM", strategy.run(rows), axis=None).to_dense())()
    np.testing.assert_array_equal(result, [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]])
    with pytest.raises(ValueError, match="without dense_shape"):
        IndexedSlices(jnp.ones([1]), jnp.array([0])).to_dense()


def test_what_has_no_meaning_for_rows_is_refused(strategy):
    given = strategy.run(rows)
    with pytest.raises(NotImplementedError, match="gather does not support IndexedSlices"):
        strategy.gather(given, axis=0)
    with pytest.raises(NotImplementedError, match="all_gather does not support IndexedSlices"):
        strategy.run(lambda: mr.get_replica_context().all_gather(rows(), axis=0))
    with pytest.raises(ValueError, match="only SUM and MEAN"):
        strategy.reduce(Median(), given, axis=None)
    with pytest.raises(ValueError, match="only SUM and MEAN"):
        strategy.reduce("SUM", given, axis=0)


def test_rows_are_a_structure_of_jax():
    given = IndexedSlices(jnp.ones([2]), jnp.array([0, 1]), np.array([3]))
    assert given.shape == (3,)
    doubled = jax.tree.map(lambda x: x * 2, -given)
    assert (doubled.values.tolist(), doubled.indices.tolist(), doubled.dense_shape) == ([-2, -2], [0, 2], (3,))
    assert IndexedSlices(jnp.ones([2, 4]), jnp.array([0, 1])).shape == (None, 4)


def test_reduced_to_a_variable_and_to_a_device(strategy):
    with strategy.scope():
        v = mr.Variable(jnp.zeros([5, 2]))
    given = strategy.run(rows)
    mirrored, plain = strategy.extended.batch_reduce_to("SUM", [(strategy.run(replica), v), (given, "CPU:0")])
    assert isinstance(mirrored, mr.Mirrored)
    v.scatter_add(plain)
    np.testing.assert_array_equal(v.numpy()[[1, 3]], [[1, 2], [3, 4]])


@pytest.mark.parametrize(("indices", "found"), [([1, -1], r"indices\[1\] = -1"), ([7, 1], r"indices\[0\] = 7")])
def test_rows_out_of_range_are_refused_in_eager_code(indices, found):
    """They were dropped, and with them a part of the gradient."""
    slices = IndexedSlices(jnp.ones((2, 2)), jnp.array(indices), (4, 2))
    for use in (slices.to_dense, lambda: jnp.asarray(slices)):
        with pytest.raises(ArgumentError, match=found + r" is not in \[0, 4\)"):
            use()
    v = mr.Variable(jnp.zeros((4, 2)))
    optimizer = mr.optimizers.SGD(1.0)
    with pytest.raises(ArgumentError, match=found):
        optimizer.apply_gradients([(slices, v)])
    assert not v.numpy().any()
    assert jax.jit(lambda: slices.to_dense())().sum() == 2  # as TensorFlow's operations on GPUs


@pytest.mark.parametrize("shape", [(1, 2), (2,), (3, 2), (2, 1)])
def test_there_is_one_row_per_index(shape):
    """JAX's scatter would broadcast the rows."""
    with pytest.raises(StructureError, match=r"one row for each index: here the shape \(2, 2\)"):
        IndexedSlices(jnp.ones(shape), jnp.array([0, 1]), (4, 2)).to_dense()
