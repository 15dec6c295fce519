"""Raises errors about checkpoints that do not match the program, and logs what a partial restore leaves out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mirrored.checkpoint.graph import SLOTS, Graph
from mirrored.checkpoint.keras_slots import KerasSlots, check_slot_kinds
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import COUNTER, Conflict, Match, resolve
from mirrored.checkpoint.objects import is_generated
from mirrored.checkpoint.optimizer_state import RateLeaf
from mirrored.checkpoint.slot_groups import saved_path
from mirrored.errors import CheckpointMismatchError

_log: Final = logging.getLogger("mirrored.checkpoint")
_REMEDY: Final = "create separate objects for these names before the restore, as when it was saved"


def check(found: Match, directory: Path, called: str, *, strict: bool, first: bool) -> None:
    """Raises an error if a checkpoint does not match the program.

    Args:
        found: The result of comparing them.
        directory: The folder of the checkpoint.
        called: The function that the user called.
        strict: Whether both must have the same names.
        first: Whether this is the first restore, which must find at least one name.

    Raises:
        CheckpointMismatchError: Kinds, shapes, dtypes or, with `strict`, names differ, or no name matches.
    """
    certain = _without_rates(found)
    here, there = certain.here.keys() - {COUNTER}, certain.saved.keys() - {COUNTER}
    nothing = first and bool(here and there) and not certain.pairs.keys() - {COUNTER} and not found.misfits
    if not (found.misfits or nothing or (strict and not found.is_complete)):
        return
    what = "has no name in common with the program" if nothing else "does not match the program"
    raise CheckpointMismatchError(
        called,
        found=f"{directory} {what}; nothing was restored\n{(certain if nothing else found).report()}",
        rule="state with the same name must have the same shape and dtype in the program and in the checkpoint"
        + (", and both must have the same names" if strict else ""),
        remedy="build the same objects under the same names as when it was saved"
        + (", or restore only matching names with partial=True" if strict and not (found.misfits or nothing) else ""),
    )


def _without_rates(found: Match) -> Match:
    """Returns a `Match` like `found`, without the learning rates of unbuilt optimizers.

    Most programs have one under the same name, so it does not tell whether the checkpoint is one of this program.
    """
    rates = {name: source for name, (source, leaf) in found.pairs.items() if isinstance(leaf, RateLeaf)}
    return dataclasses.replace(
        found,
        pairs={name: pair for name, pair in found.pairs.items() if name not in rates},
        saved={source: one for source, one in found.saved.items() if source not in rates.values()},
        here={name: one for name, one in found.here.items() if name not in rates},
    )


def check_keras_slots(graph: Graph, found: Match, manifest: Manifest, directory: Path, called: str) -> None:
    """Raises an error if a Keras optimizer and its saved state differ in the kinds of slots or the order of variables.

    Its slots are saved by position, so each variable would get the slots of another one.
    """
    names = {source: name for name, (source, _) in found.pairs.items()}
    others = graph.other_names(has_former=manifest.has_former_names)
    for optimizer, groups in graph.groups.items():
        if not isinstance(graph.optimizers.get(optimizer), KerasSlots):
            continue
        path = saved_path(optimizer, others, manifest)
        prefixes = (f"{optimizer}/{SLOTS}/0/", f"{path}/{SLOTS}/0/")
        check_slot_kinds(optimizer, prefixes, found.missing, found.unexpected, directory, called)
        here = [name for group in groups for name in group]
        saved = [name for group in manifest.groups.get(path, []) for name in group]
        there = [names.get(name, name) for name in saved]
        different = [pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]]
        is_known = path == optimizer or all(name in names for name in saved)  # other names are those of other paths
        if different and is_known and _proves_other_order(here, there, different):
            raise CheckpointMismatchError(
                called,
                found=f"the optimizer {optimizer!r} was built with the variables {', '.join(here)} in this order, and "
                f"in {directory} with {', '.join(there)}; nothing was restored",
                rule="a Keras optimizer must have the same variables in the same order as when it was saved, because "
                "its slots are saved by position",
                remedy="build it in that order before it is used: optimizer.build([...])",
            )


def _proves_other_order(here: list[str], there: list[str], different: list[tuple[str, str]]) -> bool:
    """Returns whether a difference in variable names proves a different order of variables rather than a renaming.

    The name of a variable in no part of the checkpoint begins with a colon. Such names may differ between the program
    that saved and this one. They prove a different order only if both programs have the same names, and Keras has
    generated none of the different ones.
    """
    without_part = [name for pair in different for name in pair if name.startswith(":")]
    return not without_part or (sorted(here) == sorted(there) and not any(map(is_generated, without_part)))


def check_conflicts(found: Iterable[Conflict], directory: Path, called: str, *, refuses_all: bool) -> None:
    """Raises an error about objects that the program shares, and of which the checkpoint has several.

    Args:
        found: These objects.
        directory: The folder of the checkpoint.
        called: The function that the user called.
        refuses_all: False refuses only iterators and random generators: other names can be left out on purpose.

    Raises:
        CheckpointMismatchError: There are such objects.
    """
    refused = [one for one in found if one.is_position or refuses_all]
    if refused:
        raise CheckpointMismatchError(
            called,
            found=f"{directory} has separate values for names that are one object in the program; nothing was "
            "restored\n" + "\n".join(f"  {one}" for one in refused),
            rule="a variable, module, optimizer, iterator or random generator has one value under all of its names",
            remedy=_REMEDY,
        )


def log_conflicts(found: Iterable[Conflict], directory: Path, called: str) -> None:
    """Warns about shared objects that get the values of one of their names in the checkpoint.

    The arguments are those of `check_conflicts`.
    """
    for one in found:
        _log.warning(
            "%s: %s has separate values for %s and %s, which are one object in the program; it has those of the "
            "latter now. If this is not intended, %s",
            *(called, directory, one.name, one.other, _REMEDY),
        )


def superseded(conflict: Conflict, manifest: Manifest) -> set[str]:
    """Returns the names in the checkpoint whose values a shared object does not get, because it has got others."""
    ends = [
        name.removeprefix(conflict.source) for name in manifest.leaves if f"{name}/".startswith(f"{conflict.source}/")
    ]
    return {f"{conflict.source}{end}" for end in ends if resolve(f"{conflict.other}{end}", manifest) in manifest.leaves}
