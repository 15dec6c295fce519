"""NumPy arrays in common memory: which ones a checkpoint saves, and how a restore keeps others apart.

A restore writes into the NumPy arrays of a program. A program that begins with one array under two names, and assigns
another one to a name later, saves two values, which need two arrays. Programs rely on common memory, too: a list of
views of one array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from mirrored.checkpoint.graph import Graph
from mirrored.checkpoint.leaves import ArrayLeaf, Leaf, Undo
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.objects import LEVEL
from mirrored.checkpoint.saved import Saved


def manifest_of(graph: Graph, leaves: dict[str, Saved], step: int | None = None) -> Manifest:
    """Returns the manifest of a new checkpoint, with the given values.

    Args:
        graph: The state of the program.
        leaves: The values that are saved.
        step: The step given to `CheckpointManager.save`, if any.
    """
    return Manifest(
        leaves,
        {**graph.aliases, **graph.repeated},
        graph.groups,
        step,
        overlaps=[[*group] for group in _overlapping(graph.leaves)],
        empty=[*graph.empty],
        described={name: text for name, text in graph.described.items() if text is not None},
        level=LEVEL,
        carried_level=LEVEL,
    )


def _overlapping(leaves: Mapping[str, Leaf]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Returns the NumPy arrays whose memory begins inside that of another one, by name, grouped by memory."""
    spans: list[tuple[int, int, int, str, np.ndarray[Any, Any]]] = []
    for number, (name, leaf) in enumerate(leaves.items()):
        array = leaf.place.get() if isinstance(leaf, ArrayLeaf) else None
        if isinstance(array, np.ndarray) and array.size:
            spans.append((*_bounds(array), number, name, array))
    groups: list[list[tuple[int, str, np.ndarray[Any, Any]]]] = []
    end = -1
    for low, high, number, name, array in sorted(spans, key=lambda span: span[:3]):
        if low >= end:
            groups.append([])
        groups[-1].append((number, name, array))
        end = max(end, high)
    # In the order of the program, which `sorted` has changed to that of the addresses.
    return [
        {name: array for _, name, array in sorted(group, key=lambda one: one[0])} for group in groups if len(group) > 1
    ]


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Returns the address of an array's first byte, and the one after its last byte."""
    low = high = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        reach = (size - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


@dataclasses.dataclass(frozen=True)
class _SeparateLeaf(ArrayLeaf):
    """Adapter of a NumPy array that a restore replaces by a new one, because its memory is that of another array.

    Attributes:
        made: The new arrays by the `id` of the replaced ones; common to the names that share an array when saved, too.
    """

    made: dict[int, np.ndarray[Any, Any]] = dataclasses.field(default_factory=dict)

    def put(self, saved: Saved) -> Undo:
        """Replaces the array by a new one with the saved value, and returns a function that undoes this."""
        if saved.kind == "number" or (saved.shape == () and saved.array_type not in ("", "numpy")):
            return super().put(saved)
        place, before = self.place, self.place.get()
        if id(before) not in self.made:
            self.made[id(before)] = np.empty_like(before, subok=not isinstance(before, np.memmap))
            self.made[id(before)][...] = saved.one()
        place.put(self.made[id(before)])
        return lambda: place.put(before)


class Overlaps:
    """The overlapping arrays of a program, in a restore.

    Checkpoints of earlier versions do not tell which arrays had common memory. Their values tell which cannot have had.

    Args:
        pairs: The names that match, as in `Match.pairs`.
        chosen: The names to restore; the others are restored already.
        manifest: The manifest of the checkpoint.
    """

    def __init__(self, pairs: Mapping[str, tuple[str, Leaf]], chosen: set[str], manifest: Manifest) -> None:
        self._separate: dict[str, Leaf] = {}
        self._in_place: list[tuple[str, ArrayLeaf, np.ndarray[Any, Any]]] = []
        groups = enumerate(manifest.overlaps or ())
        group_of: dict[str, Hashable] = {name: number for number, group in groups for name in group}
        for arrays in _overlapping({name: leaf for name, (_, leaf) in pairs.items()}):
            writeable = {name: array for name, array in arrays.items() if array.flags.writeable}
            if manifest.overlaps is None:
                memory: dict[str, Hashable] = {name: name in chosen for name in writeable}
            else:
                memory = {name: group_of.get(pairs[name][0], pairs[name][0]) for name in writeable}
            self._divide(writeable, memory, pairs, chosen)

    def _divide(
        self,
        arrays: dict[str, np.ndarray[Any, Any]],
        memory: dict[str, Hashable],
        pairs: Mapping[str, tuple[str, Leaf]],
        chosen: set[str],
    ) -> None:
        """Determines which of a group's arrays keep the common memory: the restored ones, or those of the largest."""
        kept = {memory[name] for name in arrays if name not in chosen}
        if not kept and arrays:
            kept = {memory[max(arrays, key=lambda name: arrays[name].nbytes)]}
        made: dict[Hashable, dict[int, np.ndarray[Any, Any]]] = {}
        for name, array in arrays.items():
            source, leaf = pairs[name]
            if name not in chosen or not isinstance(leaf, ArrayLeaf):
                continue
            if memory[name] in kept:
                self._in_place.append((source, leaf, array))
            else:
                self._separate[name] = _SeparateLeaf(leaf.place, made.setdefault(memory[name], {}))

    def leaf_of(self, name: str, leaf: Leaf) -> Leaf:
        """Returns the adapter that restores a name: `leaf`, or one that replaces an array instead of writing in it."""
        return self._separate.get(name, leaf)

    def replace_overwritten(self, values: Mapping[str, Saved], undos: list[Undo]) -> None:
        """Replaces the arrays that do not have their values after all are restored; adds what undoes it to `undos`.

        Args:
            values: The saved values by name.
            undos: The functions that undo the restore.
        """
        for source, leaf, array in self._in_place:
            saved = values[source]
            is_in_place = saved.is_array and leaf.place.get() is array
            if is_in_place and array.tobytes() != np.asarray(saved.one(), array.dtype).tobytes():
                undos.append(_SeparateLeaf(leaf.place).put(saved))
