"""The shuffle buffer of streams: the algorithm of tf.data, with positions that can be saved."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrored.data import Dataset


def stream(size: int) -> Dataset:
    return Dataset.from_generator(lambda: iter(range(size)))


def numbers(dataset: Any) -> list[int]:
    return [int(number) for number in dataset]


@settings(deadline=None, max_examples=50)
@given(size=st.integers(0, 60), buffer=st.integers(1, 70), seed=st.integers(0, 3))
def test_every_element_once_and_none_before_its_time(size: int, buffer: int, seed: int) -> None:
    found = numbers(stream(size).shuffle(buffer, seed=seed))
    assert sorted(found) == list(range(size))
    # The k-th to leave was among the first k + buffer to arrive.
    assert all(number < place + buffer for place, number in enumerate(found))


def test_a_buffer_of_one_changes_nothing() -> None:
    assert numbers(stream(20).shuffle(1, seed=0)) == list(range(20))


def test_elements_may_stay_long_and_all_orders_are_alike() -> None:
    found = numbers(stream(2000).shuffle(50, seed=4))
    delays = [place - number for place, number in enumerate(found)]
    # Not windows of 50: an element stays for 50 others on average, and some for several times as many.
    assert max(delays) > 150
    firsts = [numbers(stream(4).shuffle(4, seed=seed))[0] for seed in range(400)]
    assert all(60 < count < 140 for count in np.bincount(firsts, minlength=4))


def test_another_order_every_epoch_unless_told_otherwise() -> None:
    again = stream(30).shuffle(30, seed=1)
    assert numbers(again) != numbers(again)
    same = stream(30).shuffle(30, seed=1, reshuffle_each_iteration=False)
    assert numbers(same) == numbers(same)
    repeated = numbers(stream(20).shuffle(7, seed=1).repeat(2))
    assert sorted(repeated[:20]) == list(range(20))
    assert repeated[:20] != repeated[20:]


@settings(deadline=None, max_examples=60)
@given(size=st.integers(0, 40), buffer=st.integers(1, 12), stops=st.lists(st.integers(0, 25), min_size=1, max_size=3))
def test_a_position_continues_with_the_very_next_element(size: int, buffer: int, stops: list[int]) -> None:
    def fresh() -> Any:
        return iter(stream(size).shuffle(buffer, seed=3))

    expected, found, state = numbers(fresh()), [], None
    for stop in [*stops, size]:
        with fresh() as reading:
            if state is not None:
                reading.set_state(state)
            found += [int(number) for _, number in zip(range(stop), reading, strict=False)]
            state = json.loads(json.dumps(reading.get_state()))
    assert (found + numbers_after(fresh(), state))[:size] == expected


def numbers_after(reading: Any, state: Any) -> list[int]:
    reading.set_state(state)
    return numbers(reading)


def test_a_position_does_not_read_the_stream_from_its_beginning() -> None:
    produced: list[int] = []

    def noting(number: Any) -> Any:
        produced.append(int(number))
        return number

    def fresh() -> Any:
        # `range` can go to a position by itself, so what is read again is what the buffer needs.
        return iter(Dataset.range(4000).filter(lambda _: True).map(noting).shuffle(8, seed=0))

    reading = fresh()
    for _ in range(3900):
        next(reading)
    state = reading.get_state()
    rest = numbers(reading)
    produced.clear()
    assert numbers_after(fresh(), state) == rest
    assert min(produced) > 3000


@pytest.mark.parametrize("size", [0, 3])
def test_shorter_than_the_buffer(size: int) -> None:
    assert sorted(numbers(stream(size).shuffle(100))) == list(range(size))


@pytest.mark.parametrize("size", [5, None])
def test_zip_warns_of_shuffles_in_different_orders(size: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """One seed paired wrong elements, silently; in TensorFlow they belong together."""
    pairs = Dataset.zip((Dataset.range(20).shuffle(size, seed=1).map(lambda x: x), stream(20).shuffle(size, seed=1)))
    assert any(first != second for first, second in pairs)
    assert caplog.text.count("do not belong together") == 1
    caplog.clear()
    both = Dataset.zip((Dataset.range(20), stream(20))).shuffle(size, seed=1)
    assert all(first == second for first, second in both)
    for one, other in (
        (Dataset.range(20).shuffle(size, seed=1), Dataset.range(20).map(lambda x: x).shuffle(size, seed=1)),
        (stream(20).shuffle(size, seed=1), stream(20).map(lambda x: x).shuffle(size, seed=1)),
    ):
        assert all(first == second for first, second in Dataset.zip((one, other)))
    for other in (stream(20), stream(20).shuffle(size, seed=2), stream(20).shuffle(7, seed=1)):
        Dataset.zip((Dataset.range(20).shuffle(size, seed=1), other))
    assert not caplog.records
