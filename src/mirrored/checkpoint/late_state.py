"""Finds state that the program has created after a restore, too late to be restored, and reports it.

A restore is notified of new variables, of new iterators of datasets, and of what is assigned through the `Checkpoint`.
It is not notified of other new state in the program's own objects: random generators, iterators of other libraries,
numbers and arrays. The saved value of such state is found unused when the state is saved.
"""

from __future__ import annotations

import logging
from typing import Final

from mirrored.checkpoint.graph import Graph
from mirrored.checkpoint.leaves import ArrayLeaf, GeneratorLeaf, Leaf, PositionLeaf
from mirrored.checkpoint.list_entries import RestartedLists
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import match
from mirrored.checkpoint.number_leaf import NumberLeaf
from mirrored.checkpoint.saved_numbers import is_number
from mirrored.errors import CheckpointMismatchError

_log: Final = logging.getLogger("mirrored.checkpoint")
_SHOWN: Final = 5


def late_state(manifest: Manifest, waiting: set[str], graph: Graph) -> dict[str, Leaf]:
    """Returns the program's state, by name, that has a saved value and was created too late to be restored.

    Leaves out the entries of lists that the program has begun anew, of which `Restoration.carry_over` warns.

    Args:
        manifest: The manifest of the restored checkpoint.
        waiting: The names in it whose values are not restored.
        graph: The state of the program.
    """
    found, lists = match(graph, manifest), RestartedLists(graph.lists)
    sources = {name: source for name, (source, _) in found.pairs.items()}
    sources |= {one.name: one.source for one in found.misfits}
    late: dict[str, Leaf] = {}
    for name, source in sources.items():
        leaf = graph.leaves[name]
        if source not in waiting or not isinstance(leaf, (ArrayLeaf, GeneratorLeaf, NumberLeaf, PositionLeaf)):
            continue
        begun_anew = lists.list_of(name, manifest.leaves[source])
        if begun_anew is None or all(map(is_number, graph.lists[begun_anew])):
            late[name] = leaf
    return late


def report_late(late: dict[str, Leaf], called: str, told: set[str], *, refuses_positions: bool) -> None:
    """Warns once per name of state that was created too late to be restored.

    Args:
        late: The state by name.
        called: The function that saves the state.
        told: The names for which a warning was logged.
        refuses_positions: Whether iterators and random generators raise an error: an elastic job would silently use
            examples or random numbers twice. Numbers and arrays can be results that each step computes anew.

    Raises:
        CheckpointMismatchError: `refuses_positions`, and there are such iterators or generators.
    """
    positions = [name for name, leaf in late.items() if isinstance(leaf, (PositionLeaf, GeneratorLeaf))]
    if positions and refuses_positions:
        raise CheckpointMismatchError(
            called,
            found=f"the program has created {_listed(positions)} after the restore, which could not restore "
            f"{'it' if len(positions) == 1 else 'them'}: examples or random numbers would be used a second time",
            rule="random generators, and iterators of other libraries, must exist when the state is restored",
            remedy="create them before session.resume(checkpoint), or assign them as parts of the checkpoint "
            "(checkpoint.random = np.random.default_rng(0)), which restores them",
        )
    new = [name for name in late if name not in told]
    if new:
        told.update(new)
        _log.warning(
            "%s: the program has created %s after the restore, which did not restore the saved values; the program's "
            "own values are saved from now on. Create this state before the restore, or assign it as a part of the "
            "checkpoint (checkpoint.name = ...), which restores it; numbers in a new list, deque, dict or Counter are "
            "new values, so that such a container must exist before the restore",
            called, _listed(new),
        )  # fmt: skip


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
