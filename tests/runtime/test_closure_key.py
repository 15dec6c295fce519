"""Keys of the functions that a driven function passes to `Strategy.run`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirrored.compilation.static_keys import static_key
from mirrored.runtime.closure_key import closure_key

OTHERS = [
    [1],
    [True],
    [1.0],
    (1,),
    ["1"],
    [b"1"],
    [None],
    [0.0],
    [-0.0],
    [1, 2],
    [2, 1],
    [[1], 2],
    [1, [2]],
    {"a": 1},
    {"b": 1},
    {"a": True},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {1: "a"},
    {1},
    np.array([1]),
    np.array([1.0]),
]


def key_of(value: Any) -> Any:
    def replica(x: Any) -> Any:
        return x * len(value)

    return closure_key(replica, static_key)


@pytest.mark.parametrize("place", range(len(OTHERS)), ids=lambda place: repr(OTHERS[place]))
def test_contents_of_closures_are_told_apart(place: int) -> None:
    keys = [key_of(value) for value in OTHERS]
    assert [key == keys[place] for key in keys] == [at == place for at in range(len(OTHERS))]
    assert hash(key_of(OTHERS[place])) == hash(keys[place])


def test_a_container_that_is_changed_has_another_key() -> None:
    words = {f"word{i}": i for i in range(100)}
    before = key_of(words)
    assert key_of(words) == before
    words["word7"] = True
    assert key_of(words) != before


def test_nan_is_equal_to_itself() -> None:
    assert key_of([float("nan")]) == key_of([float("nan")])
