"""Reductions of a kind of sparse rows that a layer above defines: the results are of that kind, and errors name it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.values.sparse_rows import SparseRows, as_pytree


@as_pytree
class Rows(SparseRows):
    """Rows of a table."""


def replica_id():
    return mr.get_replica_context().replica_id_in_sync_group


def rows():
    replica = replica_id()
    return Rows(jnp.full([1, 2], 1.0 + replica), jnp.reshape(jnp.asarray(replica), [1]), (3, 2))


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("wrap", [lambda program: program, mr.function], ids=["eager", "compiled"])
def test_rows_of_all_replicas_are_concatenated(strategy, wrap):
    reduced = wrap(lambda: strategy.reduce("SUM", strategy.run(rows), axis=None))()
    everywhere = strategy.run(wrap(lambda: mr.get_replica_context().all_reduce("SUM", rows())))
    for found in (reduced, *strategy.local_results(everywhere)):
        assert type(found) is Rows
        np.testing.assert_array_equal(found.to_dense(), [[1, 1], [2, 2], [0, 0]])


SHARED_VALUES = jnp.ones([2, 2])
SHARED_INDICES = jnp.array([0, 1])


@pytest.mark.parametrize("wrap", [lambda program: program, mr.function], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("rows_of", "dense_sum"),
    [
        (lambda replica: Rows(SHARED_VALUES * (1.0 + replica), SHARED_INDICES, (3, 2)), [3, 3, 0]),
        (lambda replica: Rows(SHARED_VALUES, SHARED_INDICES + jnp.asarray(replica), (3, 2)), [1, 2, 1]),
    ],
    ids=["indices", "values"],
)
def test_a_part_that_all_replicas_share_is_repeated_for_each(strategy, wrap, rows_of, dense_sum):
    expected = np.array(dense_sum)[:, None] * np.ones([1, 2])
    for reduce_op, divisor in (("SUM", 1), ("MEAN", 2)):
        reduced = wrap(lambda op=reduce_op: strategy.reduce(op, strategy.run(lambda: rows_of(replica_id())), None))()
        np.testing.assert_array_equal(reduced.to_dense(), expected / divisor)


@pytest.mark.parametrize("wrap", [lambda program: program, mr.function], ids=["eager", "compiled"])
def test_rows_that_all_replicas_share_are_reduced_like_a_dense_value(strategy, wrap):
    def reduce(reduce_op):
        shared = strategy.run(lambda: Rows(SHARED_VALUES, SHARED_INDICES, (3, 2)))
        return strategy.reduce(reduce_op, shared, axis=None)

    np.testing.assert_array_equal(wrap(lambda: reduce("MEAN"))().to_dense(), [[1, 1], [1, 1], [0, 0]])
    with pytest.raises(ValueError, match="only per-replica values can be summed"):
        wrap(lambda: reduce("SUM"))()


@pytest.mark.parametrize("wrap", [lambda program: program, mr.function], ids=["eager", "compiled"])
def test_a_tape_around_the_run_differentiates_rows_with_shared_indices(strategy, wrap):
    def step(weight):
        with mr.GradientTape() as tape:
            tape.watch(weight)
            reduced = strategy.reduce("MEAN", strategy.run(lambda: Rows(weight * 2.0, SHARED_INDICES, (3, 2))), None)
            partial = strategy.run(lambda w: Rows(w * (1.0 + replica_id()), SHARED_INDICES, (3, 2)), (weight,))
            loss = jnp.sum(reduced.to_dense()) + jnp.sum(strategy.reduce("SUM", partial, None).to_dense())
        return tape.gradient(loss, weight)

    np.testing.assert_array_equal(wrap(step)(SHARED_VALUES), 5 * np.ones([2, 2]))


def test_errors_name_the_kind(strategy):
    with pytest.raises(NotImplementedError, match="gather does not support Rows"):
        strategy.gather(strategy.run(rows), axis=0)
    with pytest.raises(ValueError, match="rows of Rows are summed"):
        strategy.reduce("SUM", strategy.run(rows), axis=0)
    with pytest.raises(ValueError, match="requested for Rows without dense_shape"):
        Rows(jnp.ones([1]), jnp.array([0])).to_dense()
