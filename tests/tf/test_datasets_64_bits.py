"""Functions of `tf.data` datasets compute in 64 bits, whatever the state and the elements are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

D = tf.data.Dataset
BIG = 10**12
IDS = np.array([BIG, 5, 7, BIG + 1], np.int64)


def test_lists_in_elements_have_one_dtype() -> None:
    pairs = D.from_tensor_slices({"user": IDS, "item": IDS[::-1].copy()}).map(
        lambda d: {"pair": [d["user"], d["item"]], "next": [[d["user"] + 1, 0]], "flags": [1, 2]}
    )
    batches = list(pairs.batch(2).as_numpy_iterator())
    assert np.concatenate([b["pair"] for b in batches]).tolist() == np.stack([IDS, IDS[::-1]], 1).tolist()
    assert np.concatenate([b["next"] for b in batches])[:, 0].tolist() == [[n + 1, 0] for n in IDS.tolist()]
    assert {b["pair"].dtype.name for b in batches} == {"int64"}
    assert batches[0]["flags"].dtype == np.int32


def test_lists_of_float64_stay_float64_and_those_of_python_numbers_are_narrow() -> None:
    dataset = D.from_tensor_slices(np.array([0.5])).map(
        lambda x: {"wide": [x, 1.0], "narrow": [0.5, 1.0], "mixed": [np.float32(1), 0.5], "small": [np.int8(1), 2]}
    )
    dtypes = {key: spec.dtype.name for key, spec in dataset.element_spec.items()}
    assert dtypes == {"wide": "float64", "narrow": "float32", "mixed": "float32", "small": "int32"}


# What TensorFlow 2.21 gives for elements BIG and 5.
LISTS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "concat": (lambda x: tf.concat([[x], [x]], 0), [[BIG, BIG], [5, 5]]),
    "pad": (lambda x: tf.pad([x], [[0, 1]]), [[BIG, 0], [5, 0]]),
    "tile": (lambda x: tf.tile([x], [2]), [[BIG, BIG], [5, 5]]),
    "convert": (lambda x: tf.convert_to_tensor([x, 0]), [[BIG, 0], [5, 0]]),
    "constant": (lambda x: tf.constant([BIG, BIG]) + x, [[2 * BIG, 2 * BIG], [BIG + 5, BIG + 5]]),
    "scalar": (lambda x: tf.constant(BIG) * 2 + x, [3 * BIG, 2 * BIG + 5]),
    "clip": (lambda x: tf.clip_by_value(x, 0, 10**11), [10**11, 5]),
    "stack": (lambda x: tf.stack([x, 0]), [[BIG, 0], [5, 0]]),
    "fill": (lambda x: tf.fill([2], BIG), [[BIG, BIG]] * 2),
    "range": (lambda x: tf.range(2**31 - 1, 2**31 + 1), [[2**31 - 1, 2**31]] * 2),
    "gather": (lambda x: tf.gather([x, BIG], [1, 0]), [[BIG, BIG], [BIG, 5]]),
    "parts": (lambda x: tf.concat([[tf.reshape(x, [1])[0], 1], [2, x]], 0), [[BIG, 1, 2, BIG], [5, 1, 2, 5]]),
    "searchsorted": (lambda x: tf.searchsorted([1, BIG], [x]), [[1], [1]]),
}


@pytest.mark.parametrize(("function", "expected"), LISTS.values(), ids=LISTS)
def test_lists_and_numbers_of_64_bits_are_tensors(function: Callable[[Any], Any], expected: list[Any]) -> None:
    mapped = D.from_tensor_slices(IDS[:2]).map(function)
    found = list(mapped.as_numpy_iterator())
    assert [np.asarray(one).tolist() for one in found] == expected
    assert len({np.asarray(one).dtype for one in found}) == 1


@pytest.mark.parametrize(
    "make",
    [lambda: tf.constant(BIG), lambda: tf.constant([BIG]), lambda: tf.range(BIG, BIG + 2), lambda: tf.fill([2], BIG)],
)
def test_numbers_that_do_not_fit_into_a_tensor_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit into int32"):
        make()
