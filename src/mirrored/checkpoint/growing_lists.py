"""Restores lists and deques of numbers that a program appends to, such as a history of losses.

A restore appends the saved numbers that they lack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mirrored.checkpoint.graph import Graph, paths_to
from mirrored.checkpoint.json_state import decode
from mirrored.checkpoint.leaves import NumberLeaf, Undo, is_number
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import source_of

_Numbers = list[Any] | deque[Any]


def append_saved_numbers(look: Callable[[], Graph], manifest: Manifest) -> Undo:
    """Appends missing saved numbers to the program's lists, and returns a function that removes these numbers.

    A program begins with an empty list, so the numbers would have no place, and those that it appends later would have
    the names of the first ones.

    Args:
        look: Returns the state of the program.
        manifest: The manifest of the checkpoint.
    """
    grown: list[tuple[_Numbers, int]] = []

    def undo() -> None:
        for given, length in grown:
            _shorten(given, length)

    graph = look()
    others = graph.other_names()
    for name, given in graph.lists.items():
        further = _further(name, given, others, manifest)
        if further:
            grown.append((given, len(given)))
            given.extend(further)
    if grown:
        graph = look()
        found = {id(given): name for name, given in graph.lists.items()}
        for given, length in grown:  # numbers in an object that holds variables are configuration
            if not all(isinstance(graph.leaves.get(f"{found[id(given)]}/{n}"), NumberLeaf) for n in range(len(given))):
                _shorten(given, length)
    return undo


def _shorten(given: _Numbers, length: int) -> None:
    while len(given) > length:
        given.pop()


def _further(name: str, given: _Numbers, others: Mapping[str, list[str]], manifest: Manifest) -> list[Any]:
    further: list[Any] = []
    if not all(map(is_number, given)):
        return further
    longest = given.maxlen if isinstance(given, deque) else None
    while True:
        if longest is not None and len(given) + len(further) >= longest:
            return further
        source = source_of(paths_to(f"{name}/{len(given) + len(further)}", others), manifest)
        if source is None or manifest.leaves[source].kind != "number":
            return further
        further.append(decode(manifest.leaves[source].value))
