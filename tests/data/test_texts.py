"""NumPy arrays of texts: their dtypes have a length, which differs between the elements of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data.readings import read
from mirrored.data import Dataset
from mirrored.errors import ArgumentError, StructureError


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


@pytest.mark.parametrize("dtype", [object, np.dtypes.StringDType()], ids=["object", "string"])
def test_str_objects_in_arrays_become_bytes(dtype: Any) -> None:
    """As in a column of pandas: they stayed `str`, unlike those of a list, and batches of shuffled ones failed."""
    texts = np.array(["a", "é", "c"], dtype)
    encoded = [text.encode() for text in ("a", "é", "c")]
    columns = Dataset.from_tensor_slices({"text": texts, "n": np.arange(3)})
    assert [row["text"] for row in columns] == encoded
    assert list(Dataset.from_tensor_slices(texts).filter(lambda text: text == b"c")) == [b"c"]
    (batch,) = Dataset.from_tensor_slices(texts).filter(bool).shuffle(3).batch(3)
    assert sorted(batch.tolist()) == sorted(encoded)
    for whole in (
        Dataset.from_tensors(texts),
        Dataset.from_generator(lambda: iter([texts])),
        Dataset.range(1).map(lambda _: (texts, 0)).map(lambda texts, _: texts),
    ):
        assert next(iter(whole)).tolist() == encoded
    assert texts.tolist() == ["a", "é", "c"]


def test_other_objects_beside_str_objects_keep_their_values() -> None:
    table = np.array([["a", ["b", "c"]], [None, 1.5]], object)
    assert next(iter(Dataset.from_tensors(table))).tolist() == [[b"a", ["b", "c"]], [None, 1.5]]


@pytest.mark.parametrize("turned", [False, True])
def test_texts_of_numpy_arrays_are_batched_with_those_of_lists(turned: bool) -> None:
    """It was an error that bytes have no dtype, or a batch of both `str` and bytes."""
    parts = [Dataset.from_tensor_slices(np.array(["a"])), Dataset.from_tensor_slices(["b"])]
    first, second = reversed(parts) if turned else parts
    (batch,) = first.concatenate(second).batch(2)
    assert batch.tolist() == ([b"b", b"a"] if turned else [b"a", b"b"])


def test_texts_of_other_lengths_beside_numbers_are_refused() -> None:
    texts = Dataset.from_tensor_slices(np.array(["a"]))
    with pytest.raises(StructureError, match="equal shapes and dtypes"):
        list(texts.concatenate(Dataset.range(1)).batch(2))


def test_padding_and_bucketing_keep_single_texts_as_bytes() -> None:
    """They were arrays of dim 0 in the batch, which have no hash, and which `save` refused."""
    rows = Dataset.from_tensor_slices((np.array([1, 2]), ["cat", "horse"])).map(lambda n, text: (np.ones(n), text))
    for batches in (rows.padded_batch(2), rows.bucket_by_sequence_length(lambda n, text: len(n), [9], [2, 2])):
        ((_, texts),) = batches
        assert [type(text) for text in texts] == [bytes, bytes]
        assert texts.tolist() == [b"cat", b"horse"]
