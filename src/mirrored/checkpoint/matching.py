"""Matches the names in a checkpoint with those in the program: matched, missing, unexpected, or incompatible."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Final

from mirrored.checkpoint.graph import Graph
from mirrored.checkpoint.leaves import Leaf, Saved
from mirrored.checkpoint.manifest import Manifest

COUNTER: Final = "save_counter"
_SHOWN: Final = 8


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A name whose state has a different kind, shape or dtype in the checkpoint."""

    name: str
    source: str
    saved: Saved
    here: Saved


@dataclasses.dataclass(frozen=True)
class Match:
    """The result of matching a checkpoint with a program.

    Attributes:
        pairs: ``{name in the program: (name in the checkpoint, leaf)}`` for all names that match.
        missing: The names of the program that are not in the checkpoint.
        unexpected: The names of the checkpoint that are not in the program.
        misfits: The names on both sides with different kinds, shapes or dtypes.
        saved: All state in the checkpoint.
        here: The outlines of all state in the program.
    """

    pairs: dict[str, tuple[str, Leaf]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misfits: tuple[Misfit, ...]
    saved: dict[str, Saved]
    here: dict[str, Saved]

    @property
    def is_complete(self) -> bool:
        """Whether all names of both sides match."""
        return not (self.missing or self.unexpected or self.misfits)

    def report(self) -> str:
        """Formats a summary in a few lines: how many names matched, and which did not."""
        matched, all_here = self.pairs.keys() - {COUNTER}, self.here.keys() - {COUNTER}
        lines = [f"{len(matched)} of {len(all_here)} names of the program matched"]
        lines += _section("with a different shape, dtype or kind", [_misfit_line(one) for one in self.misfits])
        lines += _section("missing in the checkpoint", [self._missing_line(name) for name in self.missing])
        lines += _section("unexpected in the checkpoint", [f"{name}  {self.saved[name]}" for name in self.unexpected])
        return "\n".join([*lines, *self._renamed()])

    def _missing_line(self, name: str) -> str:
        same = [one for one in self.unexpected if str(self.saved[one]) == str(self.here[name])]
        near = difflib.get_close_matches(name, same, n=1, cutoff=0.6) if len(same) <= 200 else []
        return f"{name}  {self.here[name]}{f'  (is it {near[0]}?)' if near else ''}"

    def _renamed(self) -> list[str]:
        """Returns a line if all names of one part are in the checkpoint under the name of another part."""
        here, there = _by_part(self.missing), _by_part(self.unexpected)
        for part, names in here.items():
            for other, others in there.items():
                if part != other and names == others:
                    return [f"  the state of {part!r} is in the checkpoint as {other!r}: use Checkpoint({other}=...)"]
        return []


def match(graph: Graph, manifest: Manifest) -> Match:
    """Finds the saved state of every leaf in the program: by its name, or by another path to it on either side."""
    others = graph.other_names()
    pairs: dict[str, tuple[str, Leaf]] = {}
    missing: list[str] = []
    misfits: list[Misfit] = []
    for name, leaf in graph.leaves.items():
        source = _source(_paths(name, others), manifest)
        if source is None:
            missing.append(name)
        elif leaf.accepts(manifest.leaves[source]):
            pairs[name] = (source, leaf)
        else:
            misfits.append(Misfit(name, source, manifest.leaves[source], leaf.outline()))
    used = {source for source, _ in pairs.values()} | {one.source for one in misfits}
    unexpected = tuple(name for name in manifest.leaves if name not in used)
    here = {name: leaf.outline() for name, leaf in graph.leaves.items()}
    return Match(pairs, tuple(missing), unexpected, tuple(misfits), manifest.leaves, here)


def resolve(path: str, manifest: Manifest) -> str:
    """Resolves a path to a name in the checkpoint, through the aliases of objects along the path."""
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


def _paths(name: str, others: dict[str, list[str]]) -> Iterable[str]:
    """Yields all paths to a leaf of the program."""
    yield name
    yield from others.get(name, ())
    parts = name.split("/")
    for length in range(len(parts) - 1, 0, -1):
        for other in others.get("/".join(parts[:length]), ()):
            yield "/".join([other, *parts[length:]])


def _source(paths: Iterable[str], manifest: Manifest) -> str | None:
    return next((found for path in paths if (found := resolve(path, manifest)) in manifest.leaves), None)


def _misfit_line(one: Misfit) -> str:
    return f"{one.name}  {one.saved} in the checkpoint, {one.here} in the program"


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
