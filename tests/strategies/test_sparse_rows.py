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


def rows():
    replica = mr.get_replica_context().replica_id_in_sync_group
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


def test_errors_name_the_kind(strategy):
    with pytest.raises(NotImplementedError, match="gather does not support Rows"):
        strategy.gather(strategy.run(rows), axis=0)
    with pytest.raises(ValueError, match="rows of Rows are summed"):
        strategy.reduce("SUM", strategy.run(rows), axis=0)
    with pytest.raises(ValueError, match="requested for Rows without dense_shape"):
        Rows(jnp.ones([1]), jnp.array([0])).to_dense()
