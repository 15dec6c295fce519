from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import sparse

import mirrored as mr
from mirrored.data import Dataset, placement
from mirrored.errors import ArgumentError, StructureError


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
def test_every_example_lands_in_one_share_in_order(replicas: int) -> None:
    for size in range(30):
        shares = placement.split({"id": np.arange(size)}, replicas)
        assert len(shares) == replicas
        assert np.concatenate([share["id"] for share in shares]).tolist() == list(range(size))
        assert max(len(share["id"]) for share in shares) == -(-size // replicas)


def test_the_shares_are_those_of_tf_distribute() -> None:
    sizes = {(6, 4): [2, 2, 2, 0], (5, 4): [2, 2, 1, 0], (7, 3): [3, 3, 1], (4, 4): [1, 1, 1, 1], (1, 2): [1, 0]}
    for (size, replicas), expected in sizes.items():
        assert [high - low for low, high in placement.share_bounds(size, replicas)] == expected


def test_an_empty_share_keeps_the_shape_of_an_example() -> None:
    assert placement.split(np.zeros((1, 3, 2)), 2)[1].shape == (0, 3, 2)


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
@pytest.mark.parametrize("full", [1, 5, 8])
def test_padding_fills_up_to_one_shape_and_marks_the_real_examples(replicas: int, full: int) -> None:
    for size in range(full + 1):
        batch, mask = placement.pad({"id": np.arange(size)}, replicas, full)
        assert len(mask) == len(batch["id"]) == -(-full // replicas) * replicas
        assert batch["id"][mask].tolist() == list(range(size))


@pytest.mark.parametrize("kind", [list, np.array])
def test_padding_repeats_the_last_object(kind: Any) -> None:
    """Such as the boxes of each picture: the items of the last object were taken for examples."""
    rows = np.empty(3, object)
    rows[:] = [kind([1]), kind([2, 3]), kind([4, 5, 6])]
    for padded in (4, 6):
        batch, mask = placement.pad(rows, padded)
        assert [list(row) for row in batch] == [[1], [2, 3]] + [[4, 5, 6]] * (padded - 2)
        assert mask.sum() == 3


@pytest.mark.parametrize(("dtype", "filling"), [(object, b""), ("U3", ""), ("float32", 0.0), ("datetime64[D]", 0)])
def test_a_batch_without_examples_is_padded_with_values_of_its_dtype(dtype: Any, filling: Any) -> None:
    """A batch of strings was padded with the integer 0."""
    batch, mask = placement.pad(np.zeros((0, 2), dtype), 2, 4)
    assert batch.dtype == dtype
    assert batch.tolist() == np.full((4, 2), filling, dtype).tolist()
    assert not mask.any()


def test_padding_repeats_the_last_example() -> None:
    batch, _ = placement.pad(np.array([1.5, 2.5, 3.5]), 4)
    assert batch.tolist() == [1.5, 2.5, 3.5, 3.5]


def test_an_unbatched_element_is_refused_with_its_leaf_and_the_remedy() -> None:
    with pytest.raises(StructureError, match=r"element\['x'\] is a scalar(.|\n)*\.batch\("):
        placement.split({"x": np.int64(1)}, 2)


def test_leaves_that_disagree_are_refused() -> None:
    with pytest.raises(StructureError, match=r"element\[1\] has 3 examples, the leaves before it 4"):
        placement.split((np.zeros(4), np.zeros(3)), 2)


def test_a_batch_without_arrays_is_refused() -> None:
    with pytest.raises(StructureError, match="no array"):
        placement.split({}, 2)


def test_no_replicas_are_refused() -> None:
    with pytest.raises(ArgumentError, match="num_replicas=0"):
        placement.split(np.zeros(3), 0)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ArgumentError, match="last_batch='trim'"):
        placement.check_last_batch("trim", "distribute")


@pytest.mark.parametrize("kind", [sparse.BCOO, sparse.BCSR])
def test_sparse_matrices_are_refused(kind: Any) -> None:
    """They were split by stored elements: each replica got a matrix of all examples with some of their elements."""
    rows = np.array([[1, 0, 2], [0, 3, 0], [4, 0, 0], [0, 7, 5]], np.float32)
    matrix = kind.fromdense(rows)
    remedy = r"element\['x'\] is a sparse matrix: .*float32\[4, 3\](?s:.*)todense"
    for batch in ({"x": matrix}, {"x": matrix, "y": np.arange(4)}):
        with pytest.raises(StructureError, match=remedy):
            placement.split(batch, 2)
        with pytest.raises(StructureError, match=remedy):
            Dataset.from_tensor_slices(batch)
    assert [share["x"].shape for share in placement.split({"x": matrix.todense()}, 2)] == [(2, 3), (2, 3)]


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_a_matrix_is_split_like_an_array(rows: int) -> None:
    given = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    matrix = given.view(np.matrix)
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    for data in ([matrix], [{"x": matrix}], Dataset.from_generator(lambda: iter([matrix]))):
        batch = next(iter(strategy.experimental_distribute_dataset(data)))
        shares = strategy.experimental_local_results(batch["x"] if isinstance(batch, dict) else batch)
        assert [np.shape(share) for share in shares] == [(-(-rows // 2), 3), (rows // 2, 3)]
        np.testing.assert_array_equal(np.concatenate(shares), given)
