"""Atomic restore: checks and reads a checkpoint completely before it changes any variable."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

from mirrored._blocks import contextmanager
from mirrored._jax.traces import eager
from mirrored.checkpoint.array_files import marks_of_files, read_leaves, verify_files
from mirrored.checkpoint.graph import Graph
from mirrored.checkpoint.growing_lists import add_saved_numbers
from mirrored.checkpoint.leaves import GeneratorLeaf, Leaf, PositionLeaf, Undo
from mirrored.checkpoint.list_entries import RestartedLists
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import COUNTER, Conflict, Match, match, resolve
from mirrored.checkpoint.mismatches import check, check_conflicts, check_keras_slots, log_conflicts, superseded
from mirrored.checkpoint.missing_slots import make_slots, optimizers_to_build
from mirrored.checkpoint.overlaps import Overlaps
from mirrored.checkpoint.saved import Saved
from mirrored.checkpoint.separation import SharedPlaces, conflicts, log_copies, separate
from mirrored.checkpoint.sharing import on_all_workers, own_position
from mirrored.checkpoint.slot_groups import check_groups, log_unnamed
from mirrored.checkpoint.unsaved_values import LIMIT, log_unrestored
from mirrored.collectives.host_allgather import skipping_comparisons
from mirrored.errors import CheckpointError, ContextError
from mirrored.runtime.ambient import ambient, within
from mirrored.variables.state_lock import together

_log = logging.getLogger("mirrored.checkpoint")

T = TypeVar("T")


@contextmanager
def outside_of_steps(called: str) -> Iterator[None]:
    """Context manager that suspends strategy scopes and tapes, so that variables are read and written eagerly.

    Raises:
        ContextError: Called inside `run` or a compiled function.
    """
    here = ambient()
    if here.replica is not None or here.store is not None:
        raise ContextError(
            called,
            found="it was called inside a replica function or a compiled function",
            rule="a checkpoint can be saved or restored only between two steps",
            remedy="call it after strategy.run(...), outside of mirrored.function",
        )
    with within(strategies=(), listeners=()), eager():
        yield


class Restoration:
    """A restore of a checkpoint: restores existing variables at once, and others when the program creates them.

    Args:
        directory: The folder of the checkpoint.
        manifest: The manifest of the checkpoint.
        look: Returns the current state of the program.
    """

    _on_all_workers: ClassVar[bool] = True
    """Whether all workers restore together, from the same files."""

    _refuses_conflicts: ClassVar[bool] = False
    """Whether objects that are shared in the program only are an error even if the restore may be partial."""

    def __init__(self, directory: Path, manifest: Manifest, look: Callable[[], Graph]) -> None:
        self._directory, self._manifest, self._look = directory, manifest, look
        self._done: set[str] = set()
        self._late: set[str] = set()
        self._used: set[str] = set()
        self._told: set[str] = set()  # the lists of which a warning was logged
        self._verified: object = None
        self._held: dict[str, Saved] = {}  # values not restored yet, read for a save
        self._is_readable = True
        self._conflicts: list[Conflict] = []  # of which a warning was logged
        self._compared: set[str] = set()  # the names of texts, and of objects, that the program had before

    def match(self) -> Match:
        """Returns the result of comparing the checkpoint's names with the program's names.

        Names that match count as missing and unexpected if their values were not restored.
        """
        found = match(self._look(), self._manifest)
        late = [name for name in found.pairs if name not in self._done]
        kept = {name: pair for name, pair in found.pairs.items() if name in self._done}
        sources = tuple(found.pairs[name][0] for name in late)
        return dataclasses.replace(
            found,
            pairs=kept,
            missing=(*found.missing, *late),
            unexpected=(*found.unexpected, *sources),
            conflicts=tuple(self._conflicts),
        )

    def _match(self, graph: Graph) -> Match:
        found = match(graph, self._manifest)
        return dataclasses.replace(found, conflicts=conflicts(graph, self._manifest, self._waiting()))

    def is_over(self) -> bool:
        """Returns whether every value in the checkpoint is restored, or superseded by a newer restore."""
        return self._manifest.leaves.keys() <= self._used

    def pending(self) -> tuple[Manifest, set[str]]:
        """Returns the checkpoint's manifest, and the names in it whose values are not restored yet."""
        return self._manifest, self._waiting()

    def _waiting(self) -> set[str]:
        return self._manifest.leaves.keys() - self._used

    def begin(self, called: str, *, strict: bool = False) -> None:
        """Restores all state that the program has now; `proceed` restores the rest when the program creates it.

        Args:
            called: For messages.
            strict: Whether the program and the checkpoint must have the same names, except those that the checkpoint
                has only carried over from an earlier one.

        Raises:
            CheckpointMismatchError: Kinds, shapes or dtypes differ, no name matches, or with `strict` a name is only on
                one side.
            DamagedCheckpointError: The files were changed or damaged after they were written.
        """
        undo: Undo | None = None
        separated = separate(self._look, self._manifest, self._waiting())
        try:
            undo = add_saved_numbers(self._look, self._manifest)
            self._restore(called, lambda name, leaf: True, strict=strict, first=True)
        except BaseException:
            if undo is not None:
                undo()
            separated.undo()
            raise
        log_copies(called, separated.copies)
        self._log_unrestored(called)

    def cancel_superseded_by(self, newer: Restoration) -> None:
        """Makes this restore skip all existing state for which the later restore `newer` also has a value."""
        graph = self._look()
        theirs, own = match(graph, newer._manifest), match(graph, self._manifest)
        taken = {*theirs.pairs, *(one.name for one in theirs.misfits)} - self._done
        self._late |= taken
        self._used.update(source for name, (source, _) in own.pairs.items() if name in taken)
        self._used.update(one.source for one in own.misfits if one.name in taken)

    def has_more_than(self, newer: Restoration) -> bool:
        """Returns whether this restore has pending values under names that a newer restore lacks."""
        theirs = newer._manifest
        return any(resolve(name, theirs) not in theirs.leaves for name in self._manifest.leaves.keys() - self._used)

    def proceed(self, called: str, wanted: Callable[[str, Leaf], bool]) -> bool:
        """Restores variables and other state that the program has just created; does not change older state.

        Args:
            called: The function that the user called, for messages.
            wanted: From a name in the program and its leaf to whether it was just created.

        Returns:
            Whether there was such state.

        Raises:
            CheckpointMismatchError: Kinds, shapes or dtypes differ.
            DamagedCheckpointError: The files were changed or damaged after they were written.
        """
        if ambient().replica is not None or ambient().store is not None:
            new = self._new_names(wanted)
            if new:
                self._give_up(new)
            return bool(new)
        separated = separate(self._look, self._manifest, self._waiting(), functools.partial(_are_wanted, wanted))
        inside = tuple(f"{path}/" for path in separated.copies)

        def wanted_too(name: str, leaf: Leaf) -> bool:
            return wanted(name, leaf) or name.startswith(inside)

        try:
            new = self._new_names(wanted_too)
            if new:
                self._restore(called, wanted_too, strict=False, first=False)
        except BaseException:
            separated.undo()
            raise
        log_copies(called, separated.copies)
        if new:
            self._log_unrestored(called)
        return bool(new)

    def _log_unrestored(self, called: str) -> None:
        """Warns of texts that differ from the saved ones, in objects that the program did not have before."""
        if not self._manifest.described:
            return
        graph, manifest = self._look(), self._manifest
        known = {name: resolve(name, manifest) for name in (*graph.described, *graph.names.values(), *graph.aliases)}
        new = {name: path for name, path in known.items() if name not in self._compared}
        here = {path: graph.described[name] for name, path in new.items() if name in graph.described}
        elsewhere = {*known.values(), *(resolve(name, manifest) for name in graph.leaves)} - here.keys()
        if len(graph.described) >= LIMIT:  # the program can have further ones
            elsewhere |= manifest.described.keys() - here.keys()
        saved = {name: text for name, text in manifest.described.items() if name not in elsewhere}
        log_unrestored(called, str(self._directory), saved, here, set(new.values()))
        self._compared |= new.keys()

    def make_slots(self, called: str) -> None:
        """Creates and restores the pending optimizer slots whose variables all exist now.

        The values of the variables may come from a newer restore. Does nothing in a step, or if the slots cannot be
        restored; `proceed` restores slots created later.
        """
        graph, here = self._look(), ambient()
        found = match(graph, self._manifest)
        if here.replica is None and here.store is None and optimizers_to_build(graph, found, self._manifest):
            with contextlib.suppress(CheckpointError):
                self._restore(called, lambda name, leaf: False, strict=False, first=False)

    def carry_over(self, manifest: Manifest, graph: Graph, wanted: Callable[[str], bool]) -> Manifest:
        """Returns `manifest`, extended by the saved values that are not restored yet.

        The values are read once and held in memory, because the restored checkpoint may be removed before the program
        creates the objects to which they belong. If they cannot be read, a warning is logged, and they are left out.

        Args:
            manifest: The manifest of a new checkpoint, with the program's current state.
            graph: The state from which the manifest was made.
            wanted: From a name in the checkpoint to whether the program may still create this state.
        """
        found, lists = match(graph, self._manifest), RestartedLists(graph.lists)
        taken = {*self._used, *(source for source, _ in found.pairs.values()), *(one.source for one in found.misfits)}
        names = [
            name
            for name in self._manifest.leaves
            if name not in taken and name not in manifest.leaves and name != COUNTER and wanted(name)
            if not self._is_of_restarted_list(name, lists)
        ]
        self._held = {name: saved for name, saved in self._held.items() if name in names}
        if not names or not self._hold([name for name in names if name not in self._held]):
            return manifest
        groups = {
            optimizer: group
            for optimizer, group in self._manifest.groups.items()
            if not manifest.groups.get(optimizer) and any(name.startswith(f"{optimizer}/") for name in names)
        }
        aliases = {
            path: name
            for path, name in self._manifest.aliases.items()
            if path not in manifest.leaves and any(one == name or one.startswith(f"{name}/") for one in names)
        }
        return dataclasses.replace(
            manifest,
            leaves={**manifest.leaves, **{name: self._held[name] for name in names}},
            aliases={**aliases, **manifest.aliases},
            groups={**manifest.groups, **groups},
            carried=[*manifest.carried, *names],
            carried_level=min(manifest.carried_level, *(self._manifest.level_of(name) for name in names)),
        )

    def _is_of_restarted_list(self, name: str, lists: RestartedLists) -> bool:
        """Returns whether a saved value belongs to a list that the program now fills with new items.

        Warns once for each such list, except for a list of numbers, which a restore continues.
        """
        saved = self._manifest.leaves[name]
        found = lists.list_of(name, saved)
        is_number = saved.kind == "number" and name.rpartition("/")[0] == found
        if found is not None and not is_number and found not in self._told:
            self._told.add(found)
            _log.warning(
                "%s has entries in %s that a restore does not continue, as it does lists of numbers: the program has "
                "begun the list anew, and its checkpoints have the new entries only. Keep numbers, for example "
                "{'loss': [], 'epoch': []} instead of a list of dicts",
                self._directory, found,
            )  # fmt: skip
        return found is not None

    def _hold(self, names: list[str]) -> bool:
        """Reads values that are not restored yet into memory; returns False if they cannot be read."""

        def read() -> dict[str, Saved]:
            self._verify()
            return read_leaves(self._directory, self._manifest, names)

        if names and self._is_readable:
            try:
                self._held.update(on_all_workers("Checkpoint.save", "read what waits to be restored", read))
            except CheckpointError as error:
                self._is_readable = False
                _log.warning(
                    "the values of %d names in %s, whose objects the program has not created yet, cannot be read any "
                    "more (%s); the checkpoints that are saved from now on do not have them: %s",
                    len(names), self._directory, error.found, ", ".join(names[:5]),
                )  # fmt: skip
        return self._is_readable

    def _new_names(self, wanted: Callable[[str, Leaf], bool]) -> list[str]:
        graph = self._look()
        found = match(graph, self._manifest)
        known = [*found.pairs, *(one.name for one in found.misfits)]
        return [name for name in known if self._is_new(name) and wanted(name, graph.leaves[name])]

    def _is_new(self, name: str) -> bool:
        return name not in self._done and name not in self._late

    def _give_up(self, new: list[str]) -> None:
        self._late.update(new)
        _log.warning(
            "state created in a step after the restore of %s keeps its initial value: %s; create it before",
            self._directory, ", ".join(new[:5]),
        )  # fmt: skip

    def _restore(self, called: str, wanted: Callable[[str, Leaf], bool], *, strict: bool, first: bool) -> None:
        graph, found = self._agreed(called, "check", lambda: self._checked(called, wanted, first=first), first)
        chosen = {name for name, (_, leaf) in found.pairs.items() if self._is_new(name) and wanted(name, leaf)}
        if self._agreed(called, "make slots for", lambda: make_slots(graph, found, self._manifest), first):
            # The new slots add names to the program, so both sides are matched again.
            graph = self._look()
            before, found = found, self._relevant_mismatches(self._match(graph), graph, wanted)
            chosen |= found.pairs.keys() - before.pairs.keys()
        todo = {name: pair for name, pair in found.pairs.items() if name in chosen}
        overlaps = Overlaps(found.pairs, chosen, self._manifest)
        undos: list[Undo] = []
        shared = SharedPlaces(graph)

        def put() -> None:
            check_keras_slots(graph, found, self._manifest, self._directory, called)
            expected = tuple(name for name in found.unexpected if name not in self._manifest.carried)
            check(dataclasses.replace(found, unexpected=expected), self._directory, called, strict=strict, first=first)
            here = [one for one in found.conflicts if first or _is_wanted(wanted, graph, one)]
            check_conflicts(here, self._directory, called, refuses_all=self._refuses_conflicts)
            values = self._values([source for source, _ in todo.values()])
            # All workers read the same files, so what they assign need not be compared.
            with outside_of_steps(called), skipping_comparisons():
                own = [
                    (overlaps.leaf_of(name, leaf), own_position(values[source], source, called))
                    for name, (source, leaf) in todo.items()
                ]
                _put(own, self._put_one, undos)
                overlaps.replace_overwritten(values, undos)
                shared.follow(undos)

        try:
            self._agreed(called, "restore", put, first)
        except BaseException:
            for undo in reversed(undos):
                with contextlib.suppress(Exception):
                    undo()
            raise
        log_unnamed({name: leaf for name, (_, leaf) in found.pairs.items() if name in chosen}, self._directory)
        self._done |= chosen
        self._used.update(source for source, _ in todo.values())
        here = [one for one in found.conflicts if first or _is_wanted(wanted, graph, one)]
        log_conflicts(here, self._directory, called)
        self._used |= {name for one in here for name in superseded(one, self._manifest)}
        self._conflicts.extend(here)

    def _checked(self, called: str, wanted: Callable[[str, Leaf], bool], *, first: bool) -> tuple[Graph, Match]:
        """Returns the program's state, and the result of comparing it with the checkpoint; checks the files, too."""
        graph = self._look()
        found = self._relevant_mismatches(self._match(graph), graph, wanted)
        check(found, self._directory, called, strict=False, first=first)
        check_groups(found.regrouped, self._directory, called)
        if not self._held:
            self._verify()
        return graph, found

    def _agreed(self, called: str, step: str, work: Callable[[], T], first: bool) -> T:
        """Calls `work`; if it fails on one worker, raises the error on all workers, so that none is restored alone.

        Only the first restore of a checkpoint is a call of all workers. Later ones follow when a worker creates state.
        """
        if not (first and self._on_all_workers):
            return work()
        result: T = on_all_workers(called, f"{step} {self._directory.name}", work, shares=Exception)
        return result

    def _put_one(self, leaf: Leaf, saved: Saved) -> Undo:
        return leaf.put(saved)

    def _values(self, names: list[str]) -> dict[str, Saved]:
        """Returns the saved values by name, from memory if they are held there, otherwise from the files."""
        others = [name for name in names if name not in self._held]
        if others:
            self._verify()
        return {**self._held, **read_leaves(self._directory, self._manifest, others)} if others else self._held

    def _relevant_mismatches(self, found: Match, graph: Graph, wanted: Callable[[str, Leaf], bool]) -> Match:
        """Returns a copy of `found` without the mismatches of values that are restored or unwanted."""
        misfits = tuple(
            one for one in found.misfits if self._is_new(one.name) and wanted(one.name, graph.leaves[one.name])
        )
        return dataclasses.replace(found, misfits=misfits)

    def _verify(self) -> None:
        """Checks the files' checksums, unless the same files were checked before."""
        mark = marks_of_files(self._directory, self._manifest)
        if mark != self._verified:
            verify_files(self._directory, self._manifest)
            self._verified = mark


def _are_wanted(wanted: Callable[[str, Leaf], bool], graph: Graph, name: str, paths: Iterable[str]) -> bool:
    """Returns whether a restore that goes on may put copies of a container at other paths of it.

    The program has just set these paths, or created what is in the container. Other containers are at several places
    because the program has put them there since the restore began.

    Args:
        wanted: From a name in the program and its leaf to whether it was just created.
        graph: The state of the program.
        name: The name of the container.
        paths: The other paths.
    """
    inside = _inside(graph, name)
    return bool(inside) and all(wanted(f"{path}{end}", leaf) for path in paths for end, leaf in inside.items())


def _is_wanted(wanted: Callable[[str, Leaf], bool], graph: Graph, one: Conflict) -> bool:
    inside = _inside(graph, graph.aliases.get(one.name, one.name))
    return any(wanted(f"{one.name}{end}", leaf) for end, leaf in inside.items())


def _inside(graph: Graph, path: str) -> dict[str, Leaf]:
    return {name.removeprefix(path): leaf for name, leaf in graph.leaves.items() if f"{name}/".startswith(f"{path}/")}


def _put(todo: list[tuple[Leaf, Saved]], put_one: Callable[[Leaf, Saved], Undo], undos: list[Undo]) -> None:
    """Restores all values, iterator positions first, because they run user code; adds what undoes each to `undos`."""
    todo = sorted(todo, key=lambda pair: not isinstance(pair[0], (PositionLeaf, GeneratorLeaf)))

    def put() -> None:
        for leaf, saved in todo:
            undos.append(put_one(leaf, saved))

    together(put)
