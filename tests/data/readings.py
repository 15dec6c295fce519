"""Helpers that read datasets in tests."""

from __future__ import annotations

import json
from typing import Any

import jax

from mirrored.data import Dataset


def plain(element: Any) -> Any:
    """Converts arrays to lists."""
    return jax.tree.map(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, element)


def read(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset]


def assert_resumes_everywhere(dataset: Dataset) -> None:
    """Checks that a position saved as JSON after any number of elements continues with the next element."""
    whole = iter(dataset)
    states, elements = [json.dumps(whole.get_state())], []
    for element in whole:
        elements.append(plain(element))
        states.append(json.dumps(whole.get_state()))
    for count, state in enumerate(states):
        restored = iter(dataset)
        restored.set_state(json.loads(state))
        assert read(restored) == elements[count:], f"after {count} of {len(elements)}"
