"""Containers from which elements were taken, and those that were only written to."""

from __future__ import annotations

import collections
import queue
import random
from collections.abc import Callable
from typing import Any

import pytest

from mirrored.compilation.captured_objects import ContainerSnapshot, is_container


class Row:
    """An element: two of them are never the same."""


def rows() -> list[Any]:
    return [Row() for _ in range(4)]


def filled(kind: Any) -> Any:
    made = kind()
    for row in rows():
        made.put(row)
    return made


def refilled(made: Any) -> None:
    made.append(made.pop(0) if isinstance(made, list) else made.popleft())


TAKEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list.pop": (rows, lambda made: made.pop()),
    "list.pop(0)": (rows, lambda made: made.pop(0)),
    "del": (rows, lambda made: made.__delitem__(1)),
    "list, reused": (rows, refilled),
    "list, refilled": (rows, lambda made: (made.pop(0), made.append(Row()))),
    "list, drained": (rows, lambda made: made.clear()),
    "reordered": (rows, lambda made: random.Random(0).shuffle(made)),
    "popleft": (lambda: collections.deque(rows()), lambda made: made.popleft()),
    "rotate": (lambda: collections.deque(rows()), lambda made: made.rotate()),
    "deque, refilled": (lambda: collections.deque(rows()), lambda made: (made.popleft(), made.append(Row()))),
    "deque of numbers, refilled": (
        lambda: collections.deque([1, 2, 3]),
        lambda made: (made.popleft(), made.append(4)),
    ),
    "dict.pop": (lambda: dict(enumerate(rows())), lambda made: made.pop(0)),
    "popitem": (lambda: dict(enumerate(rows())), lambda made: made.popitem()),
    "set.pop": (lambda: set(rows()), lambda made: made.pop()),
    "Queue.get": (lambda: filled(queue.Queue), lambda made: made.get()),
    "LifoQueue.get": (lambda: filled(queue.LifoQueue), lambda made: made.get()),
}
KEPT: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "untouched": (rows, lambda made: None),
    "append": (rows, lambda made: made.append(Row())),
    "insert": (rows, lambda made: made.insert(0, Row())),
    "item": (rows, lambda made: made.__setitem__(0, Row())),
    "counted": (lambda: [0, 1, 1], lambda made: made.__setitem__(0, made[0] + 1)),
    "bounded": (lambda: collections.deque(rows(), maxlen=4), lambda made: made.append(Row())),
    "dict item": (lambda: {"step": 1}, lambda made: made.update(step=2, other=3)),
    "set.add": (lambda: set(rows()), lambda made: made.add(Row())),
    "Queue.put": (lambda: filled(queue.Queue), lambda made: made.put(Row())),
}


def contents(made: Any) -> list[Any]:
    inner = getattr(made, "queue", made)
    return list(inner.items() if isinstance(inner, dict) else inner)


@pytest.mark.parametrize("name", TAKEN)
def test_elements_that_are_taken_are_noticed_and_put_back(name: str) -> None:
    make, take = TAKEN[name]
    made = make()
    held = contents(made)
    before = ContainerSnapshot(made)
    take(made)
    assert is_container(made)
    assert before.has_lost_elements()
    before.put_back()
    assert not before.has_lost_elements()
    assert set(map(str, contents(made))) == set(map(str, held))


@pytest.mark.parametrize("name", KEPT)
def test_what_is_added_or_replaced_is_nothing_taken(name: str) -> None:
    make, change = KEPT[name]
    made = make()
    before = ContainerSnapshot(made)
    change(made)
    held = contents(made)
    assert not before.has_lost_elements()
    before.put_back()
    assert contents(made) == held


def test_other_objects_are_no_containers() -> None:
    assert not any(map(is_container, ((1, 2), "text", range(3), object(), type("List", (list,), {})())))
