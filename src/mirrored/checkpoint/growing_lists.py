"""Restores lists, deques, counters and dicts of numbers that a program adds to, such as a history of losses.

A restore adds the saved numbers that they lack; to a plain dict, only if it is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mirrored.checkpoint.graph import Graph, paths_to
from mirrored.checkpoint.leaves import Undo
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import resolve, source_of
from mirrored.checkpoint.number_leaf import NumberLeaf
from mirrored.checkpoint.places import grows
from mirrored.checkpoint.saved_numbers import is_number, number_of

_Numbers = list[Any] | deque[Any]
_Counts = dict[Any, Any]


def add_saved_numbers(look: Callable[[], Graph], manifest: Manifest) -> Undo:
    """Adds missing saved numbers to the program's lists and counters, and returns a function that removes them.

    Args:
        look: Returns the state of the program.
        manifest: The manifest of the checkpoint.
    """
    undo_lists, undo_counts = _append_saved_numbers(look, manifest), _add_saved_items(look, manifest)

    def undo() -> None:
        undo_counts()
        undo_lists()

    return undo


def _append_saved_numbers(look: Callable[[], Graph], manifest: Manifest) -> Undo:
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
    others = graph.other_names(has_former=manifest.has_former_names)
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
        further.append(number_of(manifest.leaves[source]))


def _add_saved_items(look: Callable[[], Graph], manifest: Manifest) -> Undo:
    """Adds missing saved numbers to counters and dicts, and returns a function that removes them.

    A program reads an item of a counter or default dict before it has set it, and goes on with the default. An empty
    dict is one to which the program adds its items, as ``if name not in best or loss < best[name]`` does.
    """
    saved = _saved_items(manifest)
    grown: list[tuple[_Counts, list[str | int]]] = []

    def undo() -> None:
        for given, keys in grown:
            _remove(given, keys)

    if not saved:
        return undo
    graph = look()
    others = graph.other_names(has_former=manifest.has_former_names)
    for given in graph.visited.values():
        if grows(given) and all(map(is_number, given.values())):
            paths = paths_to(graph.names[id(given)], others)
            items = next((found for path in paths if (found := saved.get(resolve(path, manifest)))), {})
            further = {key: value for key, value in items.items() if key not in given}
            grown.append((given, list(further)))
            for key, value in further.items():
                given[key] = value
    graph = look()
    numbers = {leaf.owner for leaf in graph.leaves.values() if isinstance(leaf, NumberLeaf)}
    for given, keys in grown:  # numbers in an object that holds variables are configuration
        if id(given) not in numbers:
            _remove(given, keys)
    return undo


def _saved_items(manifest: Manifest) -> dict[str, dict[str | int, Any]]:
    """Returns the saved numbers of dicts, by the name of the dict and the key."""
    saved: dict[str, dict[str | int, Any]] = {}
    for name, one in manifest.leaves.items():
        if one.key is not None:
            saved.setdefault(name.rpartition("/")[0], {})[one.key] = number_of(one)
    return saved


def _remove(given: _Counts, keys: list[str | int]) -> None:
    for key in keys:
        given.pop(key, None)
