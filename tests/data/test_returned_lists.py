"""Lists that functions of datasets return: tuples, as in `tf.data` (recorded with TensorFlow 2.21)."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from data.readings import assert_resumes_everywhere, read
from mirrored.data import ArraySpec, Dataset
from mirrored.errors import StructureError

State = collections.namedtuple("State", ["total", "count"])


class OwnList(list[Any]):
    pass


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda of: of.map(lambda x: [x, x * 2]), [(0, 0), (1, 2), (2, 4)]),
        (lambda of: of.map(lambda x: OwnList([x, x * 2])), [(0, 0), (1, 2), (2, 4)]),
        (lambda of: of.map(lambda x: [x]), [(0,), (1,), (2,)]),
        (lambda of: of.map(lambda x: [x, x * 2], num_parallel_calls=2).map(lambda x, y: x + y), [0, 3, 6]),
        (lambda of: of.map(lambda x: [1.5, "a", {"x": x}]), [(1.5, b"a", {"x": x}) for x in range(3)]),
        (lambda of: of.map(lambda x: [[x, x], x]), [([0, 0], 0), ([1, 1], 1), ([2, 2], 2)]),
        (lambda of: of.map(lambda x: (x, [x, x])), [(0, [0, 0]), (1, [1, 1]), (2, [2, 2])]),
        (lambda of: of.map(lambda x: {"a": [x, x]}), [{"a": [0, 0]}, {"a": [1, 1]}, {"a": [2, 2]}]),
        (lambda of: of.random_map(lambda x, rng: [x, x]), [(0, 0), (1, 1), (2, 2)]),
        (lambda of: of.batch(3).map(lambda x: [x, x * 2]), [([0, 1, 2], [0, 2, 4])]),
        (lambda of: of.map(lambda x: [np.arange(x), x]).padded_batch(3), [([[0, 0], [0, 0], [0, 1]], [0, 1, 2])]),
        (lambda of: of.flat_map(lambda x: Dataset.range(1).map(lambda y: [x, y])), [(0, 0), (1, 0), (2, 0)]),
        (lambda of: of.scan(np.int64(0), lambda state, x: [state + x, state]), [0, 0, 1]),
        (lambda of: of.scan(np.int64(0), lambda state, x: (state + x, [state, x])), [[0, 0], [0, 1], [1, 2]]),
    ],
)
@pytest.mark.parametrize("indexed", [True, False])
def test_a_returned_list_is_a_tuple(build: Callable[[Dataset], Dataset], expected: Any, indexed: bool) -> None:
    numbers = Dataset.range(3) if indexed else Dataset.from_generator(lambda: iter(np.arange(3)))
    dataset = build(numbers)
    assert read(dataset) == expected
    assert_resumes_everywhere(dataset)


def test_the_parts_of_a_returned_list_keep_their_dtypes_and_shapes() -> None:
    dataset = Dataset.from_tensor_slices(np.array([2**24 + 1], np.int64)).map(lambda x: [x, np.ones(2, np.float32)])
    assert dataset.element_spec == (ArraySpec((), np.dtype("int64")), ArraySpec((2,), np.dtype("float32")))
    number, _ = next(iter(dataset))
    assert number == 2**24 + 1


def test_a_list_that_a_generator_yields_is_one_array() -> None:
    assert read(Dataset.from_generator(lambda: [[1, 2], [3, 4]], output_types="int32")) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("state", "function", "expected"),
    [
        ((np.int64(0), np.int64(0)), lambda state, x: [state[0] + x, state[1] + 1], (3, 3)),
        (State(np.int64(0), np.int64(0)), lambda state, x: [state.total + x, state.count + 1], State(3, 3)),
        (np.int64(0), lambda state, x: [state + x], 3),
        (np.zeros(2), lambda state, x: [state + x], [3, 3]),
        ([0, 0], lambda state, x: [state[0] + x, state[1] + 1], [3, 3]),
        ([0], lambda state, x: [state[0] + x], [3]),
    ],
)
def test_a_list_has_the_structure_of_the_state(state: Any, function: Callable[..., Any], expected: Any) -> None:
    result = Dataset.range(3).reduce(state, function)
    assert type(result) is type(expected) if isinstance(expected, tuple) else np.shape(result) == np.shape(expected)
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("operation", ["filter", "take_while"])
def test_a_list_is_no_truth(operation: str) -> None:
    dataset = getattr(Dataset.range(3), operation)(lambda x: [x > 5])
    with pytest.raises(StructureError, match="returned a list of 1 for element 0"):
        read(dataset)
