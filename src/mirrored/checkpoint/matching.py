"""Matches the names in a checkpoint with the names in the program, and reports the result of a restore."""

from __future__ import annotations

import atexit
import dataclasses
import difflib
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mirrored.checkpoint.graph import SLOTS, Graph, paths_to
from mirrored.checkpoint.json_state import decode
from mirrored.checkpoint.leaves import GeneratorLeaf, Leaf, PositionLeaf
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.number_leaf import NumberLeaf
from mirrored.checkpoint.optimizer_state import RateLeaf
from mirrored.checkpoint.saved import Saved
from mirrored.checkpoint.slot_groups import Regrouped, match_groups
from mirrored.errors import CheckpointMismatchError
from mirrored.watchdog.fail_fast_exit import in_forked_children

# Matches the names in a checkpoint with those in the program: matched, missing, unexpected, or incompatible.

COUNTER: Final = "save_counter"
_SHOWN: Final = 8


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A value whose kind, shape or dtype in the checkpoint differs from that in the program."""

    name: str
    source: str
    saved: Saved
    here: Saved


@dataclasses.dataclass(frozen=True)
class Conflict:
    """An object that is one object in the program, and that the checkpoint has several times, with separate values.

    Attributes:
        name: A path of the object in the program.
        other: Another path of it, whose value it gets.
        source: The name in the checkpoint of what is under the first path.
        is_position: Whether it is an iterator or random generator, of which both paths have names.
    """

    name: str
    other: str
    source: str
    is_position: bool

    def __str__(self) -> str:
        return f"{self.name}  is the same object as {self.other}"


@dataclasses.dataclass(frozen=True)
class Match:
    """The result of comparing a checkpoint's names with the program's: common names, and names on one side only.

    Attributes:
        pairs: ``{name in the program: (name in the checkpoint, leaf)}`` for all names that match.
        missing: The names of the program that are not in the checkpoint.
        unexpected: The names of the checkpoint that are not in the program.
        misfits: The names on both sides with different kinds, shapes or dtypes.
        saved: All state in the checkpoint.
        here: The outlines of all state in the program.
        regrouped: Variables that share optimizer state only in the program, or only in the checkpoint.
        conflicts: The objects that are shared in the program, and separate in the checkpoint.
    """

    pairs: dict[str, tuple[str, Leaf]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misfits: tuple[Misfit, ...]
    saved: dict[str, Saved]
    here: dict[str, Saved]
    regrouped: tuple[Regrouped, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the checkpoint and the program have the same names, with equal kinds, shapes and dtypes."""
        return not (self.missing or self.unexpected or self.misfits or self.conflicts)

    def report(self) -> str:
        """Returns a text that says how many names match, and lists the names that do not."""
        matched, all_here = self.pairs.keys() - {COUNTER}, self.here.keys() - {COUNTER}
        lines = [f"{len(matched)} of {len(all_here)} names of the program matched"]
        lines += _section("with a different shape, dtype or kind", [_misfit_line(one) for one in self.misfits])
        lines += _section("missing in the checkpoint", [self._missing_line(name) for name in self.missing])
        lines += _section("unexpected in the checkpoint", [f"{name}  {self.saved[name]}" for name in self.unexpected])
        shared = "shared in the program, but separate in the checkpoint"
        lines += _section(shared, [str(one) for one in self.conflicts])
        return "\n".join([*lines, *self._rename_hint_lines()])

    def _missing_line(self, name: str) -> str:
        if name in self.saved:
            return f"{name}  {self.here[name]}  (created too late to be restored)"
        same = [one for one in self.unexpected if str(self.saved[one]) == str(self.here[name])]
        near = difflib.get_close_matches(name, same, n=1, cutoff=0.6) if len(same) <= 200 else []
        return f"{name}  {self.here[name]}{f'  (is it {near[0]}?)' if near else ''}"

    def _rename_hint_lines(self) -> list[str]:
        """Returns a one-line hint if an object's state is in the checkpoint under another name; otherwise nothing."""
        here, there = _by_part(self.missing), _by_part(self.unexpected)
        for part, names in here.items():
            for other, others in there.items():
                if part != other and names == others:
                    return [f"  the state of {part!r} is in the checkpoint as {other!r}: use Checkpoint({other}=...)"]
        return []


def match(graph: Graph, manifest: Manifest) -> Match:
    """Matches the names in a checkpoint with those in the program, and compares their kinds, shapes and dtypes."""
    others = graph.other_names(has_former=manifest.has_former_names)
    groups = match_groups(graph, manifest, lambda name: source_of(paths_to(name, others), manifest))
    slots = _slots_of_renamed(graph, others, manifest)
    pairs: dict[str, tuple[str, Leaf]] = {}
    missing: list[str] = []
    misfits: list[Misfit] = []
    for name, leaf in graph.leaves.items():
        # The variables of a list have numbers as names, too.
        path = groups.source_path(name) if name in graph.shared else name
        source = source_of(paths_to(path, others), manifest)
        if source is None and (renamed := slots.get(name.rpartition("/")[0])) is not None:
            source = source_of(paths_to(f"{renamed}/{name.rpartition('/')[2]}", others), manifest)
        if source is None:
            missing.append(name)
        elif leaf.accepts(manifest.leaves[source]) or _is_counter(name, manifest.leaves[source]):
            pairs[name] = (source, leaf)
        else:
            misfits.append(Misfit(name, source, manifest.leaves[source], leaf.outline()))
    # Checkpoints do not have the learning rate of an optimizer that was not built or that has a schedule.
    optional = {name for name in missing if isinstance(graph.leaves[name], RateLeaf)}
    optional |= _configuration_names(graph, missing, others, manifest)
    unsaved = optional | _unsaved_by_its_version(graph, missing, optional, manifest)
    missing = [name for name in missing if name not in unsaved]
    used = {source for source, _ in pairs.values()} | {one.source for one in misfits}
    unexpected = tuple(name for name in manifest.leaves if name not in used)
    here = {name: leaf.outline() for name, leaf in graph.leaves.items() if name not in optional}
    return Match(pairs, tuple(missing), unexpected, tuple(misfits), manifest.leaves, here, tuple(groups.regrouped))


def _slots_of_renamed(graph: Graph, others: Mapping[str, list[str]], manifest: Manifest) -> dict[str, str]:
    """Returns the prefixes of slots' names, with their variables' names in the checkpoint, by those in the program.

    The name of a slot contains that of its variable, which can differ: a variable in two objects has the shortest path.
    """
    prefixes: dict[str, str] = {}
    for optimizer, groups in graph.groups.items():
        for member in (member for members in groups for member in members):
            source = source_of(paths_to(member, others), manifest)
            if source not in (None, member):
                prefixes[f"{optimizer}/{SLOTS}/{member}"] = f"{optimizer}/{SLOTS}/{source}"
    return prefixes


def _unsaved_by_its_version(graph: Graph, missing: list[str], optional: set[str], manifest: Manifest) -> set[str]:
    """Returns the names in `missing` of state that the version that wrote the checkpoint did not save.

    Earlier versions do not state their level. One that saved state with a certain number `Part.since` saved all of it,
    so that names with a number are missing only if none of them is in the checkpoint.
    """
    names = {name: since for name, since in graph.recent.items() if since > manifest.level_of(name)}
    nested = [name for name, leaf in graph.leaves.items() if isinstance(leaf, NumberLeaf) and leaf.is_nested]
    groups = [{name for name in nested if manifest.level_of(name) == 0}]
    groups += [{name for name, number in names.items() if number == since} for since in set(names.values())]
    return {name for group in groups if (group - optional).issubset(missing) for name in group}


def _configuration_names(
    graph: Graph, missing: Iterable[str], others: Mapping[str, list[str]], manifest: Manifest
) -> set[str]:
    """Returns the names in `missing` whose numbers are model configuration rather than saved state.

    An object that creates its variables in its first call has numbers alone before it. In the checkpoint it has
    variables, and its numbers are not saved. Beside arrays (`Saved.array_type`) numbers are saved.
    """
    numbers = [name for name in missing if graph.holders.get(name)]
    if not numbers:
        return set()
    saved = manifest.leaves
    models = paths_above(name for name in saved if saved[name].is_array and not saved[name].array_type)
    models -= paths_above(name for name in saved if saved[name].kind == "number")
    # Positions and generators are beside the numbers of models, too.
    no_variables = (NumberLeaf, PositionLeaf, GeneratorLeaf)
    others_here = paths_above(name for name, leaf in graph.leaves.items() if not isinstance(leaf, no_variables))
    found = {
        holder: holder not in others_here
        and any(resolve(path, manifest) in models for path in paths_to(holder, others))
        for holder in {holder for name in numbers for holder in graph.holders[name]}
    }
    return {name for name in numbers if any(found[holder] for holder in graph.holders[name])}


def paths_above(names: Iterable[str]) -> set[str]:
    """Returns the names of all objects that contain the values with the given names, directly or indirectly."""
    return {name[:end] for name in names for end, character in enumerate(name) if character == "/"}


def _is_counter(name: str, saved: Saved) -> bool:
    """Returns whether a saved value is the checkpoint's save counter, of dtype int32 or int64.

    It has the width of integers in the program that saved it.
    """
    return name == COUNTER and (saved.kind, saved.shape) == ("array", ()) and saved.dtype in ("int32", "int64")


def resolve(path: str, manifest: Manifest) -> str:
    """Returns the name that a checkpoint uses for the value at an attribute path.

    The path may be any that led to the value when it was saved. An unknown path is returned unchanged.
    """
    for _ in range(len(manifest.aliases) + 1):
        if path in manifest.leaves:
            return path
        parts = path.split("/")
        prefixes = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
        known = next((prefix for prefix in prefixes if prefix in manifest.aliases), None)
        if known is None:
            return path
        path = manifest.aliases[known] + path[len(known) :]
    return path


def source_of(paths: Iterable[str], manifest: Manifest) -> str | None:
    """Returns a value's name in the checkpoint, or None, given all paths to the value in the program."""
    return next((found for path in paths if (found := resolve(path, manifest)) in manifest.leaves), None)


def _misfit_line(one: Misfit) -> str:
    saved = f"the number {decode(one.saved.value)}" if one.saved.kind == one.here.kind == "number" else one.saved
    return f"{one.name}  {saved} in the checkpoint, {one.here} in the program"


def _section(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    more = [f"    ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [f"  {len(lines)} {title}:", *(f"    {line}" for line in lines[:_SHOWN]), *more]


def _by_part(names: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in names:
        part, _, rest = name.partition("/")
        found.setdefault(part, set()).add(rest)
    return found


# `RestoreStatus`: the result of a restore, with the names that matched, were missing or were unexpected.

_log = logging.getLogger("mirrored.checkpoint")


class RestoreStatus:
    """The result of `Checkpoint.restore`: says which names matched, and has TensorFlow's `assert_` methods.

    After a partial restore, a warning is logged when the status is garbage-collected, unless `expect_partial` or one of
    the `assert_` methods was called.

    Example:
        >>> import tempfile
        >>> import mirrored as mr
        >>> folder = tempfile.TemporaryDirectory()
        >>> checkpoint = mr.checkpoint.Checkpoint(w=mr.Variable([1.0, 2.0]))
        >>> path = checkpoint.save(f"{folder.name}/model")
        >>> w, b = mr.Variable([0.0, 0.0]), mr.Variable(0.0)
        >>> status = mr.checkpoint.Checkpoint(w=w, b=b).restore(path).expect_partial()
        >>> w.numpy().tolist(), status.missing
        ([1.0, 2.0], ('b',))
        >>> folder.cleanup()

    TensorFlow: the `CheckpointLoadStatus` of `tf.train.Checkpoint.restore`.
    """

    def __init__(self, path: str | None, look: Callable[[], Match]) -> None:
        self._path, self._look = path, look
        found = look()
        self._partial = None if path is None or found.is_complete else found.report()
        if self._partial is not None:
            _unreported.add(self)

    @property
    def matched(self) -> tuple[str, ...]:
        """The names of the values that were restored."""
        return tuple(self._look().pairs)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the program's values that were not restored: the checkpoint lacks them, or they came later."""
        return self._look().missing

    @property
    def unexpected(self) -> tuple[str, ...]:
        """The names in the checkpoint for which the program has no variable or other state (yet)."""
        return self._look().unexpected

    @property
    def report(self) -> str:
        """A text that says how many names matched, and lists the names that did not."""
        return self._look().report()

    def assert_consumed(self) -> RestoreStatus:
        """Raises an error unless the checkpoint and the program contain state under exactly the same names.

        Raises:
            CheckpointMismatchError: A name is missing on one side.
        """
        return self._assert(
            "assert_consumed",
            "every name must be in both the program and the checkpoint",
            lambda found: found.is_complete,
        )

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Raises an error unless all state in the program was restored; the checkpoint may contain more.

        Raises:
            CheckpointMismatchError: A name of the program was not restored.
        """
        rule = "every name of the program is in the checkpoint"
        return self._assert("assert_existing_objects_matched", rule, lambda found: not found.missing)

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Raises an error unless at least one value was restored.

        Raises:
            CheckpointMismatchError: No name was restored.
        """
        return self._assert("assert_nontrivial_match", "at least one name must match", lambda found: bool(found.pairs))

    def expect_partial(self) -> RestoreStatus:
        """Silences the warning about names that did not match.

        Call it if a partial restore is intended.
        """
        self._partial = None
        return self

    def run_restore_ops(self, session: object = None) -> None:
        """Does nothing; exists because TensorFlow 1 programs call this method to run the restore."""

    def initialize_or_restore(self, session: object = None) -> None:
        """Does nothing; exists because TensorFlow 1 programs call this method to run the restore."""

    def _assert(self, method: str, rule: str, holds: Callable[[Match], bool]) -> RestoreStatus:
        self._partial = None
        found = self._look()
        if self._path is None or not holds(found):
            raise CheckpointMismatchError(
                f"restore(...).{method}",
                found="no checkpoint was given (None), so nothing was restored"
                if self._path is None
                else f"{self._path} was partially restored\n{found.report()}",
                rule=rule,
                remedy="pass the path of a checkpoint to restore() (latest_checkpoint returns None for an empty folder)"
                if self._path is None
                else "build all objects under the names that they had when it was saved, or use expect_partial()",
            )
        return self

    def __repr__(self) -> str:
        return f"<RestoreStatus {self._path}: {self.report}>"

    def __del__(self) -> None:
        partial = getattr(self, "_partial", None)
        if partial is not None:
            _report(self._path, partial)


def _report(path: str | None, partial: str) -> None:
    _log.warning(
        "%s was partially restored; variables and iterators of datasets that are created later are restored then. "
        "Call expect_partial() if this is intended\n%s",
        path,
        partial,
    )


_unreported: weakref.WeakSet[RestoreStatus] = weakref.WeakSet()


@atexit.register
def _report_unreported() -> None:
    """Logs pending warnings about partial restores at exit, when `RestoreStatus.__del__` would run too late.

    Python finalizes modules before it makes the remaining calls of `__del__`.
    """
    for status in list(_unreported):
        partial, status._partial = status._partial, None
        if partial is not None:
            _report(status._path, partial)


in_forked_children(_unreported.clear)  # the parent process reports its own restores
