from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data.readings import assert_resumes_everywhere, read
from mirrored.data import UNKNOWN_CARDINALITY, ArraySpec, Dataset
from mirrored.errors import ArgumentError, InputError, MirroredError, StructureError

D = Dataset
ROWS = [[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], [13, 14, 15, 16, 19, 20], [21, 22]]


def ragged(rows: list[list[int]] = ROWS) -> Dataset:
    return D.from_generator(lambda: iter(rows), output_signature=ArraySpec((None,), np.dtype("int64")))


def total(state: Any, n: Any) -> Any:
    return state + n, state + n


# What TensorFlow 2.21 gives for these programs.
CASES: list[tuple[Any, Any]] = [
    (lambda: D.range(10).take_while(lambda n: n < 5), [0, 1, 2, 3, 4]),
    (lambda: D.range(10).repeat().take_while(lambda n: n < 5), [0, 1, 2, 3, 4]),
    (lambda: D.range(3).take_while(lambda n: n < 0), []),
    (lambda: D.range(10).scan(np.int64(0), total), [0, 1, 3, 6, 10, 15, 21, 28, 36, 45]),
    (
        lambda: D.zip((D.range(3), D.range(3))).scan(
            (np.int64(0), 1.0), lambda s, x: ((s[0] + x[0], s[1] * 2), (x[1], s[1]))
        ),
        [(0, 1.0), (1, 2.0), (2, 4.0)],
    ),
    (lambda: D.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique(), [1, 37, 2]),
    (lambda: D.from_tensor_slices(["a", "b", "a"]).unique(), [b"a", b"b"]),
    (lambda: D.from_tensor_slices(np.array(["a", "b", "a"])).unique(), ["a", "b"]),
    (lambda: D.range(2).map(lambda n: np.array(["a"], f"U{n + 1}")).unique(), [["a"]]),
    (lambda: D.from_tensor_slices([[1, 2], [1, 2], [2, 1]]).unique(), [[1, 2], [2, 1]]),
    (
        lambda: D.range(10).group_by_window(lambda n: n % 3, lambda k, w: w.batch(2), 2),
        [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]],
    ),
    (
        lambda: D.range(7).group_by_window(lambda n: -n % 3, lambda k, w: w.map(lambda v: (k, v)), 5),
        [(0, 0), (0, 3), (0, 6), (1, 2), (1, 5), (2, 1), (2, 4)],
    ),
    (
        lambda: D.range(10).group_by_window(
            lambda n: n % 2, lambda k, w: w.batch(10), window_size_func=lambda k: k + 2
        ),
        [[0, 2], [1, 3, 5], [4, 6], [8], [7, 9]],
    ),
    (
        lambda: ragged().bucket_by_sequence_length(len, [3, 5], [2, 2, 2]),
        [[[1, 2, 3, 4], [5, 6, 7, 0]], [[7, 8, 9, 10, 11, 0], [13, 14, 15, 16, 19, 20]], [[0, 0], [21, 22]]],
    ),
    (
        lambda: ragged().bucket_by_sequence_length(
            len, [4, 7], [2, 2, 2], pad_to_bucket_boundary=True, padding_values=-1
        ),
        [
            [[0, -1, -1], [5, 6, 7]],
            [[1, 2, 3, 4, -1, -1], [7, 8, 9, 10, 11, -1]],
            [[21, 22, -1]],
            [[13, 14, 15, 16, 19, 20]],
        ],
    ),
    (
        lambda: ragged(ROWS[:3]).bucket_by_sequence_length(len, [3, 5], [2, 2, 2], drop_remainder=True),
        [[[1, 2, 3, 4], [5, 6, 7, 0]]],
    ),
    (
        lambda: D.from_tensor_slices(np.arange(12).reshape(6, 2)).bucket_by_sequence_length(
            len, [3], [2, 2], no_padding=True
        ),
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]],
    ),
]


@pytest.mark.parametrize(("make", "expected"), CASES)
def test_elements_are_those_of_tensorflow_and_positions_hold(make: Any, expected: Any) -> None:
    assert read(make()) == expected
    assert_resumes_everywhere(make())
    assert read(make().repeat(2)) == expected * 2


def test_cardinality_and_spec() -> None:
    scanned = D.range(10).scan(0.0, lambda s, n: (s + 1, (n, s)))
    assert len(scanned) == 10
    assert scanned.element_spec == (ArraySpec((), np.dtype("int64")), ArraySpec((), np.dtype("float32")))
    grouped = D.range(10).group_by_window(lambda n: n % 2, lambda k, w: w.batch(3), 3)
    assert grouped.cardinality() == UNKNOWN_CARDINALITY
    assert grouped.element_spec == ArraySpec((None,), np.dtype("int64"))
    assert D.range(3).take_while(lambda n: True).cardinality() == UNKNOWN_CARDINALITY


def test_groups_shuffle_inside_by_position_only() -> None:
    grouped = D.range(20).group_by_window(lambda n: n % 2, lambda k, w: w.shuffle(10, seed=3).batch(5), 10)
    assert sorted(sum(read(grouped), [])) == list(range(20))
    assert_resumes_everywhere(grouped)


def test_promised_cardinality() -> None:
    known = D.range(4).filter(lambda n: True).assert_cardinality(4)
    assert len(known) == 4
    assert read(known) == [0, 1, 2, 3]
    for promised, message in (
        (3, "has more elements, expected_cardinality is 3"),
        (5, "has 4 elements, expected_cardinality is 5"),
    ):
        with pytest.raises(InputError, match=message):
            list(D.range(4).assert_cardinality(promised))


def test_the_only_element() -> None:
    assert D.range(5, 6).get_single_element() == 5
    with pytest.raises(ArgumentError, match="the dataset is empty"):
        D.range(0).get_single_element()
    with pytest.raises(ArgumentError, match="more than one element"):
        D.range(2).get_single_element()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.range(3).scan(0, lambda s, n: s), "scan_func returned ndarray"),
        (lambda: D.range(3).scan(0, lambda s, n: (s + 0.5, n)), "the state must keep its structure and dtypes"),
        (lambda: D.range(3).scan(0, lambda s, n: ((s, s), n)), "the state must keep its structure"),
        (lambda: D.from_tensor_slices([1.0]).unique(), "one array of integers, booleans or strings"),
        (lambda: D.zip((D.range(2), D.range(2))).unique(), "one array of integers"),
        (
            lambda: D.range(3).group_by_window(lambda n: n, lambda k, w: w),
            "exactly one of window_size and window_size_func must be given",
        ),
        (lambda: D.range(3).group_by_window(lambda n: n, lambda k, w: w, 1, lambda k: 1), "exactly one of window_size"),
        (lambda: D.range(3).group_by_window(lambda n: n, lambda k, w: w, 0), "a window of 0 elements for the key 0"),
        (lambda: D.range(3).group_by_window(lambda n: 0.5, lambda k, w: w, 1), "key_func returned 0.5"),
        (lambda: D.range(3).group_by_window(lambda n: n, lambda k, w: k, 1), "reduce_func must return a Dataset"),
        (lambda: ragged().bucket_by_sequence_length(len, [3, 5], [2, 2]), "one more batch size than boundaries"),
        (
            lambda: ragged().bucket_by_sequence_length(len, [3, 5], [2, 2, 2], pad_to_bucket_boundary=True),
            "all elements must be shorter than the last boundary",
        ),
        (
            lambda: D.from_tensors([1, 2]).bucket_by_sequence_length(len, [5], [1, 1], pad_to_bucket_boundary=True),
            "no dim of the shapes .* varies",
        ),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(MirroredError, match=message) as raised:
        list(make())
    assert isinstance(raised.value, ArgumentError | StructureError)
