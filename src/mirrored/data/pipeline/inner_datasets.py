"""Records in saved read positions the datasets that functions make, as in `flat_map`, and checks those made later."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Final

from mirrored.data.pipeline.left_out import LeftOut
from mirrored.data.pipeline.nodes import Node, Run, nodes, seeded
from mirrored.data.pipeline.positions import check_same, elements_changed_by, outline, recorded_of
from mirrored.data.pipeline.seeds import DrawnSeed
from mirrored.data.pipeline.stateful import StatefulStep
from mirrored.errors import ArgumentError

_OF_EACH: Final = 2  # datasets with the same operations: the second one shows whether their seeds differ
_MOST: Final = 16  # records, and inner passes, of one operation, so that positions stay small
_COMPARED: Final = 32  # only the first inner datasets of a pass are recorded, so that later ones cost nothing
_READ: Final = ("settings", "arguments", "grouping", "grouped", "replayed", "reread", "slices")
_COUNTED: Final = ("settings", "arguments", "slices", "order")  # if the examples are counted, as with other batch sizes

_Seeds = list[int | None]  # None for a drawn seed, which depends on that of the outer operation
_Number = tuple[int, ...]  # of an inner dataset: the `Run.key` of the outer pass, and its index


@dataclasses.dataclass
class _Made:
    """The datasets that the function of one operation has made.

    Attributes:
        records: The operations, arguments, seeds and numbers of the first datasets of each pass.
        saved: The numbers in `records` that a restored position contained.
        keys: The `Run.key` of each pass in `records`.
        replaced: By the outline of a dataset, its own seeds, and the saved ones that replace them.
    """

    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    saved: frozenset[_Number] = frozenset()
    keys: list[_Number] = dataclasses.field(default_factory=list)
    replaced: dict[str, tuple[_Seeds, _Seeds]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, saved: list[dict[str, Any]]) -> _Made:
        """Returns the datasets that a restored position contains."""
        records = [{**record, "numbers": [tuple(number) for number in record["numbers"]]} for record in saved]
        numbers = [number for record in records for number in record["numbers"]]
        return cls(records, frozenset(numbers), list(dict.fromkeys(number[:-1] for number in sorted(numbers))))

    def in_effect(self, name: str, own: _Seeds) -> _Seeds:
        """Returns the seeds that a dataset with the outline `name` and its own seeds `own` uses."""
        before, after = self.replaced.get(name, (own, own))
        return after if own == before else own

    def note(self, number: _Number, name: str, node: Node, seeds: _Seeds) -> None:
        """Adds a dataset to `records`, unless they have it, or enough of its kind and pass."""
        if number[:-1] not in self.keys:
            self._begin(number[:-1])
        alike = [record for record in self.records if record["pipeline"] == name]
        noted = [one for record in alike for one in record["numbers"] if one[:-1] == number[:-1]]
        if len(noted) >= _OF_EACH or number in noted or (len(self.records) >= _MOST and not alike):
            return
        content = {"pipeline": name, **_non_empty(recorded_of(node)), **({"seeds": seeds} if seeds else {})}
        for record in alike:
            if {**record, "numbers": None} == {**content, "numbers": None}:
                record["numbers"] = [*record["numbers"], number]
                return
        self.records = [*self.records, {**content, "numbers": [number]}]

    def _begin(self, key: _Number) -> None:
        # The first pass, which a later operation may read again, and the latest ones, which may not have ended.
        self.keys.append(key)
        if len(self.keys) > _MOST:
            last = self.keys.pop(1)
            for record in self.records:
                record["numbers"] = [number for number in record["numbers"] if number[:-1] != last]
            self.records = [record for record in self.records if record["numbers"]]


class SameElementsError(ArgumentError):
    """Error raised for a dataset with other steps that keep the elements, such as `map`: these can be counted."""


class InnerDatasets:
    """The datasets that functions make in one pass over a dataset: `flat_map`, `interleave`, `group_by_window`.

    A position contains the first ones of each function. When it is restored, the functions make them again.

    Args:
        node: The pipeline.
        position: A position with the result of `entries`, unless it is one of an earlier version; empty at the start.
            It has the key "counts_examples" if the examples before it are counted, because batches have other sizes.

    Attributes:
        left_out: The exceptions that `ignore_errors` has left out, also in these datasets.
    """

    def __init__(self, node: Node, position: dict[str, Any]) -> None:
        self.left_out = LeftOut.of(position)
        self._names = _COUNTED if "counts_examples" in position else _READ
        self._made = {place: _Made.of(records) for place, records in position.get("made", {}).items()}
        self._node = node
        self._error: ArgumentError | None = None

    @functools.cached_property
    def _replayed(self) -> set[int]:
        """The ids of operations that read elements again after a restore, so that their order must be the same."""
        return {
            id(step)
            for later in nodes(self._node)
            if later.replays or later.keeps_elements
            for step in nodes(later)
            if step is not later or isinstance(later, StatefulStep)
        }

    @property
    def error(self) -> Exception | None:
        """The error of what does not fit the position. A step such as `ignore_errors` can catch it."""
        return self._error or self.left_out.error

    def get_state(self) -> dict[str, Any]:
        """Returns the datasets that functions have made, for a saved position."""
        return {
            place: [{**record, "numbers": [list(number) for number in record["numbers"]]} for record in made.records]
            for place, made in list(self._made.items())
        }

    def entries(self) -> dict[str, Any]:
        """Returns the entries of a saved position."""
        return {"made": self.get_state(), **self.left_out.get_state()}

    def add(self, state: dict[str, Any]) -> None:
        """Adds the datasets of an earlier pass, whose elements a cache has kept."""
        for place, records in state.items():
            self._made.setdefault(place, dataclasses.replace(_Made.of(records), saved=frozenset()))

    def saved_indices(self, outer: Node, run: Run) -> frozenset[int]:
        """Returns the indices of an operation's inner datasets that the restored position contains."""
        return frozenset(number[-1] for number in self._of(outer, run).saved if number[:-1] == run.key)

    def seeds(self, node: Node, run: Run, index: int, outer: Node) -> dict[int, int]:
        """Notes a dataset that a function has made; returns its given or restored seeds, keyed by `id(operation)`.

        Args:
            node: The inner dataset.
            run: The run of the outer operation.
            index: The index of the inner dataset.
            outer: The outer operation.

        Raises:
            ArgumentError: The dataset does not fit the restored position.
        """
        made, number = self._of(outer, run), (*run.key, index)
        if index >= _COMPARED and not made.replaced and number not in made.saved:
            return {}
        name, steps = outline(node), seeded(node)
        own = [None if isinstance(step.seed, DrawnSeed) else run.seeds.get(id(step), step.seed) for step in steps]
        try:
            for record in made.records if number in made.saved else ():
                if number in record["numbers"]:
                    self._check(record, node, name, {*run.makers, id(outer)})
                    _replace_seeds(made, name, own, record.get("seeds", []))
        except ArgumentError as error:
            self._error = error
            raise
        seeds = made.in_effect(name, own)
        made.note(number, name, node, seeds)
        return {id(step): seed for step, seed in zip(steps, seeds, strict=True) if seed is not None}

    def _of(self, outer: Node, run: Run) -> _Made:
        place = ".".join(map(str, run.places[id(outer)]))
        made = self._made.setdefault(place, _Made())
        if not run.makers and made.keys and made.keys[0] != run.key:  # another epoch of `repeat`
            for other in [other for other in list(self._made) if f"{other}.".startswith(f"{place}.")]:
                del self._made[other]
            made = self._made[place] = _Made()
        return made

    def _check(self, record: dict[str, Any], node: Node, name: str, makers: set[int]) -> None:
        saved = record["pipeline"]
        keeps = elements_changed_by(saved) == elements_changed_by(name)
        if saved != name and not (keeps and self._names is _COUNTED):
            raise (SameElementsError if keeps else ArgumentError)(
                "DatasetIterator.set_state",
                found=f"the position was saved when a function made the dataset {saved}; it now makes {name}",
                rule="a position inside a dataset that a function makes (flat_map, interleave, group_by_window) can be "
                "restored only if the function makes a dataset with the same steps",
                remedy="let the function make the saved dataset until the epoch ends, or begin a new epoch: do not set "
                "the position, and restore the checkpoint without the iterator",
            )
        own = _non_empty(recorded_of(node))
        for part in {*self._names, *(["order"] if makers & self._replayed else [])}:
            check_same(record.get(part, []), own.get(part, []), "the dataset that a function makes")


def _non_empty(recorded: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in recorded.items() if any(found)}


def _replace_seeds(made: _Made, name: str, own: _Seeds, saved: _Seeds) -> None:
    """Lets datasets use the saved seeds instead of their own ones; raises ArgumentError if the saved ones differ."""
    kinds = [[seed is None for seed in seeds] for seeds in (own, saved)]
    if name not in made.replaced and kinds[0] == kinds[1]:
        made.replaced[name] = own, saved
    before, after = made.replaced.get(name, (own, own))
    is_same = own == saved if before == after else (own, saved) == (before, after)
    if not is_same:
        raise ArgumentError(
            "DatasetIterator.set_state",
            found=f"the position was saved when a function made datasets with the seeds {saved}; it now makes them "
            f"with {own} (None: no seed is given)",
            rule="the order inside these datasets depends on the seeds. A saved seed replaces the present one only if "
            "both are given, and are the same in all of them",
            remedy="pass the saved seeds until the epoch ends, or begin a new epoch: do not set the position, and "
            "restore the checkpoint without the iterator",
        )
