"""Matching a checkpoint with the program: what fits, what is missing, what is unexpected, what has another shape."""

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
    """A name whose state is of another kind, shape or dtype in the checkpoint."""

    name: str
    source: str
    saved: Saved
    here: Saved


@dataclasses.dataclass(frozen=True)
class Match:
    """How a checkpoint and a program fit together.

    Attributes:
        pairs: ``{name in the program: (name in the checkpoint, leaf)}`` for all that fits.
        missing: Names of the program that the checkpoint does not have.
        unexpected: Names of the checkpoint that the program does not have.
        misfits: Names of both with different kinds, shapes or dtypes.
        saved: Everything in the checkpoint.
        here: Outlines of everything in the program.
    """

    pairs: dict[str, tuple[str, Leaf]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misfits: tuple[Misfit, ...]
    saved: dict[str, Saved]
    here: dict[str, Saved]

    @property
    def is_complete(self) -> bool:
        """Whether everything on either side has its counterpart."""
        return not (self.missing or self.unexpected or self.misfits)

    def report(self) -> str:
        """A few lines: how many matched, and what did not."""
        matched, all_here = self.pairs.keys() - {COUNTER}, self.here.keys() - {COUNTER}
        lines = [f"{len(matched)} of {len(all_here)} names of the program matched"]
        lines += _section("of another shape, dtype or kind", [_misfit_line(one) for one in self.misfits])
        lines += _section("missing in the checkpoint", [self._missing_line(name) for name in self.missing])
        lines += _section("unexpected in the checkpoint", [f"{name}  {self.saved[name]}" for name in self.unexpected])
        return "\n".join([*lines, *self._renamed()])

    def _missing_line(self, name: str) -> str:
        same = [one for one in self.unexpected if str(self.saved[one]) == str(self.here[name])]
        near = difflib.get_close_matches(name, same, n=1, cutoff=0.6) if len(same) <= 200 else []
        return f"{name}  {self.here[name]}{f'  (is it {near[0]}?)' if near else ''}"

    def _renamed(self) -> list[str]:
        """A line if all names of one part stand under another part's name in the checkpoint."""
        here, there = _by_part(self.missing), _by_part(self.unexpected)
        for part, names in here.items():
            for other, others in there.items():
                if part != other and names == others:
                    return [f"  everything below {part!r} is there, below the name {other!r}: Checkpoint({other}=...)"]
        return []


def match(graph: Graph, manifest: Manifest) -> Match:
    """Finds for every leaf of the program its counterpart: by name, or by another path to it on either side."""
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
    """The name in the checkpoint to which a path leads, through other paths to objects on the way."""
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
    """All paths to a leaf of the program."""
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
