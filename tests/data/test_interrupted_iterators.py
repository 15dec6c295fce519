"""A distributed iterator that an interrupt has stopped names the interrupt and a remedy that loses no batch."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from interrupts import interrupted_at
from mirrored.data import Dataset, InputOptions
from mirrored.data.distributed import DistributedIterator
from mirrored.data.feed import Feed
from mirrored.errors import InputError

BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
FILES = {inspect.getfile(Feed), inspect.getfile(DistributedIterator)}
MESSAGE = (
    r"DistributedIterator: an interrupt[\s\S]*remedy: continue with iterator\.set_state\(iterator\.get_state\(\)\)"
)


class Loader:
    """A loader whose iterators share one position, as PyTorch's `StatefulDataLoader`."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(BATCHES):
            self.position += 1
            yield np.array(BATCHES[self.position - 1])
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


KINDS: dict[str, Callable[[], Any]] = {
    "indexed": lambda: Dataset.range(11).batch(2),
    "stream": lambda: Dataset.range(11).filter(lambda x: True).batch(2),
    "generator": lambda: Dataset.from_generator(lambda: iter(range(11))).batch(2),
    "list": lambda: [np.array(batch) for batch in BATCHES],
    "loader": Loader,
}


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    """Collects no cycles in the test: an iterator of another test would be interrupted in its `__del__`."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def strategy() -> Any:
    return mr.MirroredStrategy(["CPU:0"], num_replicas=2)


def rows(strategy: Any, batch: Any) -> list[int]:
    return [int(n) for n in strategy.gather(batch, axis=0)]


def rest(strategy: Any, reading: Any) -> list[list[int]]:
    """Reads the rest of the batches. If an interrupt has stopped the iterator, the remedy of its error applies."""
    found: list[list[int]] = []
    while True:
        try:
            found.append(rows(strategy, next(reading)))
        except StopIteration:
            return found
        except InputError as error:
            with pytest.raises(InputError, match=MESSAGE):
                raise error
            with pytest.raises(InputError, match=MESSAGE):  # also later
                next(reading)
            reading.set_state(reading.get_state())


@pytest.mark.first(4)
@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("taken", [0, 2, 5, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_in_next_is_named(strategy: Any, kind: str, taken: int, prefetch: int | None) -> None:
    lost: list[int] = []
    for event_number in range(400):
        reading = iter(strategy.experimental_distribute_dataset(KINDS[kind](), InputOptions(prefetch=prefetch)))
        found = [rows(strategy, next(reading)) for _ in range(taken)]
        try:
            came, got = interrupted_at(event_number, reading.__next__, FILES)
        except StopIteration:
            assert taken == 6
            break
        found += [] if got is None else [rows(strategy, got)]
        if reading.get_state()["examples"] > sum(map(len, found)):
            lost.append(event_number)  # after the last instruction of `__next__`, where CPython delivers none
            continue
        assert found + rest(strategy, reading) == BATCHES, event_number
        reading.close()
        if not came:
            break
    assert 5 < event_number < 399
    assert len(lost) <= 1


@pytest.mark.first(5)
@pytest.mark.parametrize("taken", [0, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_after_an_interrupt_in_set_state_the_position_is_the_old_or_the_new_one(
    strategy: Any, kind: str, taken: int
) -> None:
    saved = iter(strategy.experimental_distribute_dataset(KINDS[kind]()))
    next(saved)
    position = saved.get_state()
    seen = set()
    for event_number in range(400):
        reading = iter(strategy.experimental_distribute_dataset(KINDS[kind]()))
        for _ in range(taken):
            next(reading)
        if taken == 6:
            assert rest(strategy, reading) == []
        came, _ = interrupted_at(event_number, lambda reading=reading: reading.set_state(position), FILES)  # type: ignore[misc]
        examples = reading.get_state()["examples"]
        expected = {2: BATCHES[1:], sum(map(len, BATCHES[:taken])): BATCHES[taken:]}[examples]
        assert rest(strategy, reading) == expected, event_number
        seen.add(examples)
        reading.close()
        if not came:
            break
    assert 2 in seen
    assert 5 < event_number < 399
