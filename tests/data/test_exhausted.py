"""Iterators return their elements only once: a second epoch over one would have no steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.data import ArraySpec, Dataset
from mirrored.errors import InputError


def batches() -> Iterator[np.ndarray]:
    yield from (np.full((4, 1), i) for i in range(3))


class Once:
    """Returns the same iterator every time."""

    def __init__(self) -> None:
        self._iterator = batches()

    def __iter__(self) -> Iterator[np.ndarray]:
        return self._iterator


class Anew:
    """Creates an iterator for each iteration."""

    def __iter__(self) -> Iterator[np.ndarray]:
        return batches()


def distributed(data: Any) -> Any:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(data)


def one_generator(**declared: Any) -> Dataset:
    made = batches()
    return Dataset.from_generator(lambda: made, **declared)


ONES: dict[str, Callable[[], Any]] = {
    "generator": one_generator,
    "dtypes": lambda: one_generator(output_types=np.float64),
    "dtypes and shapes": lambda: one_generator(output_types=np.float64, output_shapes=(4, 1)),
    "signature": lambda: one_generator(output_signature=ArraySpec((4, 1), np.dtype(np.float64))),
    "unknown rank": lambda: one_generator(output_signature=tf.TensorSpec(None, tf.float64)),
    "distributed": lambda: distributed(one_generator()),
    "distributed iterable": lambda: distributed(Once()),
}


@pytest.mark.parametrize("make", ONES.values(), ids=ONES)
def test_a_second_epoch_over_one_iterator_is_an_error(make: Callable[[], Any]) -> None:
    made = make()
    assert len(list(made)) == 3
    with pytest.raises(InputError, match="the same iterator"):
        list(made)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.from_generator(batches),
        lambda: Dataset.from_generator(batches, np.float64),
        lambda: distributed(Anew()),
    ],
)
def test_new_iterators_are_read_again(make: Callable[[], Any]) -> None:
    made = make()
    assert [len(list(made)) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("make", [lambda: Dataset.range(8).batch(4), lambda: distributed(Dataset.range(8).batch(4))])
def test_a_second_loop_over_an_exhausted_iterator_is_warned_of(make: Callable[[], Any]) -> None:
    reading = iter(make())
    assert len(list(reading)) == 2
    with pytest.warns(UserWarning, match="runs no steps"):
        assert list(reading) == []
    with pytest.raises(StopIteration):
        next(reading)


@pytest.mark.parametrize("declared", [{}, {"output_types": np.float64}], ids=["bare", "dtypes"])
@pytest.mark.parametrize("is_left", [False, True])
def test_a_generator_is_closed_with_its_iteration(declared: dict[str, Any], is_left: bool) -> None:
    open_now: set[object] = set()

    def made() -> Iterator[Any]:
        me = object()
        open_now.add(me)
        try:
            yield from batches()
        finally:
            open_now.remove(me)

    dataset = Dataset.from_generator(made, **declared)
    _ = dataset.element_spec
    assert not open_now
    if is_left:
        assert len(list(dataset.take(2))) == 2
    else:
        iterator = iter(dataset)
        next(iterator)
        iterator.close()
    assert not open_now
