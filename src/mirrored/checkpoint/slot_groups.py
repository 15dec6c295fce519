"""Matches the groups of an optimizer's variables in a checkpoint with those in the program.

The variables of a group share state, such as a step counter. The names of this state contain the number of the group,
which depends on the order of the first updates. So groups are matched by their variables, and not by their numbers.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mirrored.checkpoint.graph import SLOTS, Graph, paths_to
from mirrored.checkpoint.leaves import Leaf
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.objects import is_generated
from mirrored.errors import CheckpointMismatchError

_NO_GROUP = "-"


class Regrouped(NamedTuple):
    """Variables that are one group of an optimizer in the program, but several in the checkpoint, or the reverse.

    Attributes:
        optimizer: The optimizer's name in the program.
        groups: The variables' names in the program, by group on the side that has several groups.
        is_joined: Whether the program has one group; False if the checkpoint has one.
    """

    optimizer: str
    groups: list[list[str]]
    is_joined: bool


class GroupMatch(NamedTuple):
    """The result of matching the variable groups of all optimizers in the program with those in a checkpoint.

    Attributes:
        prefixes: The prefix of the checkpoint's names of a group's shared state, by that of the program's names.
        regrouped: The groups that cannot be matched.
    """

    prefixes: dict[str, str]
    regrouped: list[Regrouped]

    def source_path(self, name: str) -> str:
        """Converts the program's path of shared optimizer state to the path in the checkpoint.

        Other paths are returned unchanged.
        """
        head, slash, label = name.rpartition("/")
        return f"{self.prefixes[head]}/{label}" if slash and head in self.prefixes else name


def match_groups(graph: Graph, manifest: Manifest, source_of: Callable[[str], str | None]) -> GroupMatch:
    """Matches the program's groups of variables that share optimizer state with the groups in a checkpoint.

    A group without variables that the checkpoint knows keeps its number, unless another group has the state of that
    number.

    Args:
        graph: The state of the program.
        manifest: The manifest of the checkpoint.
        source_of: Returns the checkpoint's name of a variable, or None.
    """
    found = GroupMatch({}, [])
    others = graph.other_names(has_former=manifest.has_former_names)
    for optimizer, groups in graph.groups.items():
        path = saved_path(optimizer, others, manifest)
        saved = manifest.groups.get(path, [])
        owner = {member: number for number, members in enumerate(saved) for member in members}
        labels = {name.rpartition("/")[2] for name in graph.shared if name.startswith(f"{optimizer}/{SLOTS}/")}
        numbers: list[int | None] = []
        here: dict[int, list[list[str]]] = {}  # the members of the program's groups, by group in the checkpoint
        for members in groups:
            by_number: dict[int, list[str]] = {}
            for member in members:
                number = owner.get(source_of(member) or member)
                if number is not None:
                    by_number.setdefault(number, []).append(member)
            if len(by_number) > 1 and _have_state(manifest, path, list(by_number), labels):
                found.regrouped.append(Regrouped(optimizer, list(by_number.values()), is_joined=True))
            for number, known in by_number.items():
                here.setdefault(number, []).append(known)
            numbers.append(min(by_number, default=None))
        for number, several in here.items():
            if len(several) > 1 and _have_state(manifest, path, [number], labels):
                found.regrouped.append(Regrouped(optimizer, several, is_joined=False))
        for number, matched in enumerate(numbers):
            source = matched if matched is not None else _NO_GROUP if number in numbers else number
            found.prefixes[f"{optimizer}/{SLOTS}/{number}"] = f"{optimizer}/{SLOTS}/{source}"
    return found


def saved_path(optimizer: str, others: Mapping[str, list[str]], manifest: Manifest) -> str:
    """Returns an optimizer's path in a checkpoint, or in the program if the checkpoint has no slots of the optimizer.

    Args:
        optimizer: The optimizer's name in the program.
        others: The result of `Graph.other_names`.
        manifest: The manifest of the checkpoint.
    """
    paths = (manifest.aliases.get(path, path) for path in paths_to(optimizer, others))
    return next((path for path in paths if path in manifest.groups), optimizer)


def _have_state(manifest: Manifest, optimizer: str, numbers: list[int], labels: set[str]) -> bool:
    """Returns whether a checkpoint contains shared state of at least one of an optimizer's groups of variables.

    `labels` are the labels of such state in the program.

    A variable of a list has a number as its name, or as the first part of it, so its slots have the prefix of a group.
    """
    members = {member for group in manifest.groups.get(optimizer, ()) for member in group}
    heads = {f"{optimizer}/{SLOTS}/{number}": str(number) in members for number in numbers}
    for name in manifest.leaves:
        head, _, label = name.rpartition("/")
        if head in heads and (label in labels or not heads[head]):
            return True
    return False


def check_groups(regrouped: Sequence[Regrouped], directory: Path, called: str) -> None:
    """Raises an error if variables share a step counter in the program only, or in the checkpoint only.

    A counter that the checkpoint has for variables with several counters in the program would be copied to each of
    these. The copies would then advance separately, unlike the counter of the program that saved it.

    Raises:
        CheckpointMismatchError: There are such variables.
    """
    if not regrouped:
        return
    optimizer, groups, is_joined = regrouped[0]
    of_group = [", ".join(map(_shown, group)) for group in groups]
    names = ", ".join(of_group)
    calls = ", ".join(f"{optimizer}.build([{one}])" for one in (of_group if is_joined else [names]))
    why = "because these variables were first updated in separate calls"
    found = (
        f"one step counter for {names}, and in {directory} it has {len(groups)}, {why}"
        if is_joined
        else f"{len(groups)} step counters for {names}, {why}, and in {directory} it has one"
    )
    raise CheckpointMismatchError(
        called,
        found=f"the optimizer {optimizer!r} keeps {found}; nothing was restored",
        rule="variables must share state such as a step counter in both the program and the checkpoint, or in neither",
        remedy=f"restore the checkpoint before the optimizer is built or used, or build it as it was: {calls}",
    )


def _shown(name: str) -> str:
    return name.removeprefix(":")


_NUMBER: Final = re.compile("(?<=.):[0-9]+$")  # of variables that have the same name
_log = logging.getLogger("mirrored.checkpoint")


def log_unnamed(restored: Mapping[str, Leaf], directory: Path) -> None:
    """Warns if slots of several unnamed variables were matched only by the order of the variables' creation.

    The variables are in no part of the checkpoint, and their names are generated, or several have the same name.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, leaf in restored.items():
        optimizer, _, slot = name.partition(f"/{SLOTS}/")
        variable, _, label = slot.rpartition("/")
        if variable.startswith(":"):
            alike.setdefault((optimizer, label, str(leaf.outline())), []).append(variable)
    for (optimizer, _, _), variables in alike.items():
        given = Counter(_NUMBER.sub("", one) for one in variables)
        names = [_shown(one) for one in variables if is_generated(one) or given[_NUMBER.sub("", one)] > 1]
        if len(names) > 1:
            _log.warning(
                "the slots of %s in %s were restored in the order in which their variables were created (%s), because "
                "these have no names of their own: if the program that saved it created them in another order, each "
                "has the slots of another one. Add the variables to the checkpoint, "
                "Checkpoint(model=..., optimizer=...), or name them",
                optimizer, directory, ", ".join(names[:5]),
            )  # fmt: skip
            return
