"""Functions of `tf.data` datasets compute in 64 bits, whatever the state and the elements are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

D = tf.data.Dataset
STEP = 2**30
SUMS = [STEP * (n + 1) for n in range(5)]

STATES: dict[str, Callable[[], Any]] = {
    "constant": lambda: tf.constant(0, tf.int64),
    "zeros": lambda: tf.zeros([], tf.int64),
    "cast": lambda: tf.cast(0, tf.int64),
    "numpy": lambda: np.int64(0),
}
states = pytest.mark.parametrize("state", STATES.values(), ids=STATES)


@states
def test_reduce_does_not_wrap_around(state: Callable[[], Any]) -> None:
    assert int(D.range(5).reduce(state(), lambda total, _: total + STEP)) == SUMS[-1]


@states
def test_reduce_of_a_structure_does_not_wrap_around(state: Callable[[], Any]) -> None:
    found = D.range(5).reduce(
        {"sum": state(), "parts": (state(), [state(), state()])},
        lambda s, _: {"sum": s["sum"] + STEP, "parts": (s["parts"][0] - STEP, s["parts"][1] + STEP)},
    )
    assert int(found["sum"]) == SUMS[-1]
    assert int(found["parts"][0]) == -SUMS[-1]
    assert np.asarray(found["parts"][1]).tolist() == [SUMS[-1]] * 2


@states
def test_scan_keeps_64_bits(state: Callable[[], Any]) -> None:
    steps = D.from_tensor_slices(np.full(5, STEP, np.int64))
    assert [int(x) for x in steps.scan(state(), lambda s, x: (s + x, s + x))] == SUMS
    assert [int(x) for x in D.range(5).scan(state(), lambda s, _: (s + STEP, s + STEP))] == SUMS
    scanned = D.range(5).apply(tf.data.experimental.scan(state(), lambda s, _: (s + STEP, s + STEP)))
    assert [int(x) for x in scanned] == SUMS


def test_a_number_of_python_does_not_make_the_state_narrower() -> None:
    found = D.range(6).reduce(tf.constant(0, tf.int64), lambda total, n: 0 if n == 0 else total + STEP)
    assert int(found) == SUMS[-1]


def test_the_result_of_a_small_reduction_is_a_tensor_of_int32() -> None:
    for state in (tf.constant(0), tf.constant(0, tf.int64)):
        found = D.range(5).reduce(state, lambda total, x: total + x)
        assert isinstance(found, tf.Tensor)
        assert (found.dtype, int(found)) == (tf.int32, 10)


@states
def test_reductions_of_groups_keep_64_bits(state: Callable[[], Any]) -> None:
    reducer = tf.data.experimental.Reducer(lambda _: state(), lambda total, _: total + STEP, lambda total: total)
    by_reducer = D.range(10).apply(tf.data.experimental.group_by_reducer(lambda n: n % 2, reducer))

    def total(_: Any, window: Any) -> Any:
        return D.from_tensors(window.reduce(state(), lambda total, _: total + STEP))

    for groups in (by_reducer, D.range(10).group_by_window(lambda n: n % 2, total, window_size=5)):
        batches = list(groups.batch(2).as_numpy_iterator())
        assert [batch.tolist() for batch in batches] == [[SUMS[-1]] * 2]
        assert batches[0].dtype == np.int64


def test_windows_that_are_reduced_have_one_dtype() -> None:
    """`from_tensors` of a result must not depend on whether the result fits into 32 bits."""
    numbers = D.from_tensor_slices(np.array([1, 2, 2**40, 1], np.int64))

    def total(_: Any, window: Any) -> Any:
        return D.from_tensors(window.reduce(tf.constant(0, tf.int64), lambda s, x: s + x))

    grouped = numbers.group_by_window(lambda n: 0, total, window_size=2).batch(2)
    assert [batch.tolist() for batch in grouped.as_numpy_iterator()] == [[3, 2**40 + 1]]
    windows = numbers.window(2).flat_map(lambda window: total(0, window)).batch(2)
    assert [batch.tolist() for batch in windows.as_numpy_iterator()] == [[3, 2**40 + 1]]


def test_finalize_receives_an_array_with_the_methods_of_a_tensor() -> None:
    reducer = tf.data.experimental.Reducer(
        lambda _: tf.constant(0), lambda total, x: total + x.numpy(), lambda total: total.numpy() * 2
    )
    groups = D.range(4).apply(tf.data.experimental.group_by_reducer(lambda n: n % 2, reducer))
    assert [int(x) for x in groups] == [4, 8]


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


def test_sums_of_a_state_that_is_int32_wrap_around_as_in_tensorflow() -> None:
    for state in (tf.constant(42), tf.cast(42.0, tf.int32), tf.zeros([], tf.int32) + 42):
        tf.cast(state, tf.int64)  # which makes the result int64, not its operand
        scanned = D.range(3).scan(state, lambda s, _: (s * 1103515245 + 12345, s * 1103515245 + 12345))
        assert scanned.element_spec.dtype == tf.int32
        assert [int(x) for x in scanned][:2] == [-896987621, -1031181384]
