"""NumPy arrays of texts: their dtypes have a length, which differs between the elements of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data.readings import read
from mirrored.data import Dataset
from mirrored.errors import ArgumentError


@pytest.mark.parametrize("texts", [["cat", "horse"], [b"cat", b"horse"]], ids=["str", "bytes"])
@pytest.mark.parametrize("width", [None, 2])
def test_texts_of_numpy_arrays_can_be_batched_whatever_their_lengths(texts: list[Any], width: int | None) -> None:
    """The dtype of such a text has its length."""
    if width is None:
        texts_of = Dataset.from_tensor_slices(np.array(texts))
        separate, expected = texts_of.map(lambda text: text), texts
    else:
        texts_of = Dataset.from_tensor_slices(np.array([[text] * width for text in texts]))
        separate, expected = texts_of.map(lambda row: np.array(row.tolist())), [[text] * width for text in texts]
    for dataset in (texts_of, separate, separate.filter(lambda _: True)):
        for batches in (dataset.batch(2), dataset.padded_batch(2)):
            assert read(batches) == [expected]


@pytest.mark.parametrize("texts", [["a", "bc"], [b"a", b"bc"]], ids=["str", "bytes"])
@pytest.mark.parametrize("padding", [None, "<padding>", b"<padding>"])
def test_texts_of_numpy_arrays_are_padded_with_texts(texts: list[Any], padding: Any) -> None:
    rows = Dataset.from_tensor_slices(np.array([[text] for text in texts])).map(lambda row: np.array(row.tolist()))
    text = type(texts[0])
    filled = text() if padding is None else "<padding>" if text is str else b"<padding>"
    assert read(rows.padded_batch(2, [2], padding)) == [[[one, filled] for one in texts]]
    with pytest.raises(ArgumentError, match="the padding value 0"):
        read(rows.padded_batch(2, [2], 0))


def test_padding_and_bucketing_keep_single_texts_as_bytes() -> None:
    """They were arrays of dim 0 in the batch, which have no hash, and which `save` refused."""
    rows = Dataset.from_tensor_slices((np.array([1, 2]), ["cat", "horse"])).map(lambda n, text: (np.ones(n), text))
    for batches in (rows.padded_batch(2), rows.bucket_by_sequence_length(lambda n, text: len(n), [9], [2, 2])):
        ((_, texts),) = batches
        assert [type(text) for text in texts] == [bytes, bytes]
        assert texts.tolist() == [b"cat", b"horse"]
