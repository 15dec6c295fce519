"""Lists of numbers that a program appends to, such as a history of losses: a restore appends the saved numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrored.checkpoint.graph import Graph
from mirrored.checkpoint.json_state import decode
from mirrored.checkpoint.leaves import NumberLeaf, Undo, is_number
from mirrored.checkpoint.manifest import Manifest


def append_saved_numbers(look: Callable[[], Graph], manifest: Manifest) -> Undo:
    """Appends to each list of numbers the further ones that the checkpoint has; returns a function that undoes this.

    A program begins with an empty list, so the numbers would have no place, and those that it appends later would have
    the names of the first ones.

    Args:
        look: Returns the state of the program.
        manifest: The manifest of the checkpoint.
    """
    grown: list[tuple[list[Any], int]] = []

    def undo() -> None:
        for given, length in grown:
            del given[length:]

    for name, given in look().lists.items():
        further = _further(name, given, manifest)
        if further:
            grown.append((given, len(given)))
            given.extend(further)
    if grown:
        graph = look()
        found = {id(given): name for name, given in graph.lists.items()}
        for given, length in grown:  # numbers in an object that holds variables are configuration
            if not all(isinstance(graph.leaves.get(f"{found[id(given)]}/{n}"), NumberLeaf) for n in range(len(given))):
                del given[length:]
    return undo


def is_in_list(name: str, graph: Graph) -> bool:
    """Returns whether a saved name is that of an item of a list that the program has filled itself."""
    return bool(graph.lists.get(name.rpartition("/")[0]))


def _further(name: str, given: list[Any], manifest: Manifest) -> list[Any]:
    if not all(map(is_number, given)):
        return []
    further: list[Any] = []
    while (saved := manifest.leaves.get(f"{name}/{len(given) + len(further)}")) is not None and saved.kind == "number":
        further.append(decode(saved.value))
    return further
