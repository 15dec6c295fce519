"""Padded shapes: how they are written, and errors for those that do not fit the elements."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.data import Dataset
from mirrored.errors import StructureError
from mirrored.values.tensor_shape import TensorShape

RAGGED = Dataset.range(1, 4).map(lambda n: np.full(n, n))
PAIRS = RAGGED.map(lambda x: (x, x[0]))


@pytest.mark.parametrize("integer", [int, np.int64, np.int32, np.array, jnp.int32])
def test_sizes_are_integers_of_any_type(integer: Any) -> None:
    """Such as ``lengths.max()``, which is no int."""
    for shapes in ([integer(4)], (integer(4),)):
        batches = RAGGED.padded_batch(2, shapes)
        assert [batch.shape for batch in batches] == [(2, 4), (1, 4)]
        assert batches.element_spec.shape == (None, 4)
        assert type(batches.element_spec.shape[1]) is int
    pairs = [(x.shape, y.shape) for x, y in PAIRS.padded_batch(2, ([integer(4)], []))]
    assert pairs == [((2, 4), (2,)), ((1, 4), (1,))]
    named = RAGGED.map(lambda x: {"a": x[None], "b": x}).padded_batch(3, {"a": [None, integer(5)], "b": None})
    assert [(batch["a"].shape, batch["b"].shape) for batch in named] == [((3, 1, 5), (3, 3))]


@pytest.mark.parametrize("to_boundary", [False, True])
def test_sizes_of_buckets_are_integers_of_any_type(to_boundary: bool) -> None:
    rows = RAGGED.map(lambda x: np.ones((2, len(x))))
    batches = rows.bucket_by_sequence_length(
        lambda x: x.shape[1], [4], [3, 3], padded_shapes=[np.int64(2), None], pad_to_bucket_boundary=to_boundary
    )
    assert [batch.shape for batch in batches] == [(3, 2, 3)]


def test_none_for_each_item_of_a_tuple_pads_all_dims() -> None:
    batches = PAIRS.padded_batch(2, (None, None))
    assert [(x.shape, y.shape) for x, y in batches] == [((2, 2), (2,)), ((1, 3), (1,))]
    assert [spec.shape for spec in batches.element_spec] == [(None, None), (None,)]


@pytest.mark.parametrize(
    ("dataset", "shapes", "rank"), [(RAGGED, [None, None], 1), (RAGGED, [3, 3, 3], 1), (PAIRS, [4], 0)]
)
def test_a_shape_of_another_number_of_dims_is_refused(dataset: Dataset, shapes: Any, rank: int) -> None:
    batches = dataset.padded_batch(2, shapes)
    with pytest.raises(StructureError, match=f"for a leaf with {rank} dims"):
        list(batches)
    with pytest.raises(StructureError, match=f"for a leaf with {rank} dims"):
        _ = batches.element_spec


@pytest.mark.parametrize("shape", [[4.0], ["4"], 4, "abc", TensorShape(None)], ids=repr)
def test_what_is_no_shape_is_refused(shape: Any) -> None:
    """It was an error of `zip` or of `operator.index`, which names neither the argument nor the rule."""
    for to_boundary in (False, True):
        buckets = RAGGED.bucket_by_sequence_length(
            len, [4], [3, 3], padded_shapes=shape, pad_to_bucket_boundary=to_boundary
        )
        for batches in (RAGGED.padded_batch(2, shape), buckets):
            with pytest.raises(StructureError, match="padded_shapes contains"):
                list(batches)
    with pytest.raises(StructureError, match="padded_shapes contains"):
        _ = RAGGED.padded_batch(2, shape).element_spec
