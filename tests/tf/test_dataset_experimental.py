from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from data.readings import read

D = tf.data.Dataset
X = tf.data.experimental


# What TensorFlow 2.21 gives for these programs.
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (lambda: X.choose_from_datasets([D.range(2), D.range(10, 13)], D.range(2).repeat(9)), [0, 10, 1, 11, 12]),
        (lambda: X.sample_from_datasets([D.range(2), D.range(3)], [0.0, 1.0]), [0, 1, 2]),
        (lambda: D.range(4).apply(X.take_while(lambda n: n < 2)), [0, 1]),
        (lambda: D.range(4).batch(2).apply(X.unbatch()), [0, 1, 2, 3]),
        (lambda: D.from_tensor_slices([1, 1, 2]).apply(X.unique()), [1, 2]),
        (lambda: D.range(5, 7).apply(X.enumerate_dataset(start=1)), [(1, 5), (2, 6)]),
        (lambda: D.range(3).apply(X.scan(np.int64(0), lambda s, n: (s + n, s + n))), [0, 1, 3]),
        (lambda: D.range(4).apply(X.map_and_batch(lambda n: n * 2, 2)), [[0, 2], [4, 6]]),
        (lambda: D.range(4).apply(X.group_by_window(lambda n: n % 2, lambda k, w: w.batch(2), 2)), [[0, 2], [1, 3]]),
        (lambda: D.range(2).apply(X.parallel_interleave(lambda n: D.from_tensors(n).repeat(2), 2)), [0, 1, 0, 1]),
        (lambda: D.range(3).apply(X.prefetch_to_device("/gpu:0")).apply(X.copy_to_device("/gpu:0")), [0, 1, 2]),
        (lambda: X.Counter(2, 3).take(3), [2, 5, 8]),
        (lambda: D.range(2).filter(lambda n: True).apply(X.assert_cardinality(2)), [0, 1]),
        (
            lambda: D.range(10).apply(
                X.group_by_reducer(lambda n: n % 2, X.Reducer(lambda k: np.int64(0), lambda s, n: s + n, lambda s: s))
            ),
            [20, 25],
        ),
    ],
)
def test_elements_are_those_of_tensorflow(dataset: Any, expected: Any) -> None:
    assert read(dataset()) == expected


def test_questions_about_datasets() -> None:
    assert X.cardinality(D.range(3)) == 3
    assert X.cardinality(D.range(3).repeat()) == X.INFINITE_CARDINALITY
    assert X.cardinality(D.range(3).filter(lambda n: True)) == X.UNKNOWN_CARDINALITY
    assert X.get_single_element(D.from_tensors([1.0])).shape == (1,)
    assert len(D.range(3).apply(X.shuffle_and_repeat(3, 2, seed=1))) == 6
    assert read(X.RandomDataset(seed=1).take(2)) == read(D.random(seed=1).take(2))


def test_errors_of_elements_are_ignored():
    numbers = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 0.0, 4.0])
    inverse = numbers.map(lambda x: tf.debugging.check_numerics(1.0 / x, "infinite"))
    expected = [1.0, 0.5, 0.25]
    assert list(inverse.ignore_errors().as_numpy_iterator()) == expected
    assert list(inverse.apply(tf.data.experimental.ignore_errors()).as_numpy_iterator()) == expected
