"""Creates the optimizer slots that a checkpoint has and the program does not have yet."""

from __future__ import annotations

from typing import Any

from mirrored.checkpoint.graph import SLOTS, Graph
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import Match
from mirrored.checkpoint.objects import HasSlots
from mirrored.checkpoint.optimizer_state import RateLeaf
from mirrored.checkpoint.slot_groups import saved_path


def make_slots(graph: Graph, found: Match, manifest: Manifest) -> bool:
    """Creates the optimizer slots that only the checkpoint has, if all variables that they belong to exist.

    Returns:
        Whether any slots were created.
    """
    todo = optimizers_to_build(graph, found, manifest)
    for optimizer, groups in todo:
        for group in groups:
            optimizer.build(group)
    return bool(todo)


def optimizers_to_build(graph: Graph, found: Match, manifest: Manifest) -> list[tuple[HasSlots, list[Any]]]:
    """Returns each optimizer that must still create its slots, with its groups of variables as arguments of `build`."""
    variables = {source: graph.variables.get(name) for name, (source, _) in found.pairs.items()}
    of_unbuilt = {
        source for name, (source, leaf) in found.pairs.items() if name in graph.recent or isinstance(leaf, RateLeaf)
    }
    todo: list[tuple[HasSlots, list[Any]]] = []
    others = graph.other_names(has_former=manifest.has_former_names)
    for name, optimizer in graph.optimizers.items():
        path = saved_path(name, others, manifest)
        had_state = any(one.startswith(f"{path}/") and one not in of_unbuilt for one in manifest.leaves)
        if path not in manifest.groups or optimizer.made().groups or not had_state:
            continue
        groups = manifest.groups[path]
        if any(variables.get(member) is None for group in groups for member in group):
            continue
        todo.append((optimizer, [_as_built(group, path, variables, manifest) for group in groups] or [[]]))
    return todo


def _as_built(group: list[str], path: str, variables: dict[str, Any], manifest: Manifest) -> Any:
    """Returns an argument of `build` with which an optimizer creates a group's slots as in the program that saved it.

    `build` names and creates the slots of a dict's variables in the order of the sorted keys, and `apply` takes
    gradients in the order of the dict's items. The manifest has the second order in `groups`, the first in `leaves`.
    """
    prefix = f"{path}/{SLOTS}/"
    owners = [name.removeprefix(prefix).rpartition("/")[0] for name in manifest.leaves if name.startswith(prefix)]
    first = {owner: at for at, owner in reversed(list(enumerate(owners)))}
    in_slot_order = sorted(group, key=lambda member: first.get(member, 0))
    # A number may also stand for the group's shared state, which would state a wrong order.
    if in_slot_order == group or any(member.isdigit() for member in group):
        return [variables[member] for member in group]
    rank = {member: at for at, member in enumerate(in_slot_order)}
    return {rank[member]: variables[member] for member in group}
