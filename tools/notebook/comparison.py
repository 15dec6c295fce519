"""Cells on `mirrored.tf` against the same cells on TensorFlow: which results are deterministic, and which differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from notebook.observations import Observation, agree
from notebook.results import NotebookResult

Recording = dict[str, dict[str, dict[str, Observation]]]
"""Notebook -> cell number -> where -> what was observed on TensorFlow, the same in all of its runs."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A result that is not TensorFlow's."""

    notebook: str
    cell: int
    where: str
    ours: Observation
    theirs: Observation


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One notebook against its recording.

    Attributes:
        name: Of the notebook.
        cells: How many passed cells have at least one result that could be compared.
        values: How many results were compared.
        differences: Those that differ.
    """

    name: str
    cells: int
    values: int
    differences: Sequence[Difference]

    @property
    def differing_cells(self) -> int:
        """How many cells have a result that differs."""
        return len({one.cell for one in self.differences})


def deterministic(runs: Sequence[NotebookResult]) -> dict[str, dict[str, Observation]]:
    """The results of a notebook that are the same in every run on TensorFlow.

    Random numbers without a seed, times and addresses differ between runs, and so do not stay.

    Args:
        runs: At least two runs of the same notebook, each in a process of its own.
    """
    first, *others = runs
    kept: dict[str, dict[str, Observation]] = {}
    for cell in first.cells:
        again = [next((one.observed for one in run.cells if one.number == cell.number), {}) for run in others]
        same = {
            where: seen
            for where, seen in cell.observed.items()
            if all(where in other and agree(seen, other[where]) for other in again)
        }
        if same:
            kept[str(cell.number)] = same
    return kept


def compare(result: NotebookResult, recorded: Mapping[str, Mapping[str, Observation]]) -> Comparison:
    """Compares the passed cells of a notebook with what TensorFlow computes in them.

    A result that TensorFlow prints or shows and that ours lacks is a difference in form, not in value, and is left
    out; an assigned name is compared wherever both have numbers under it.

    Args:
        result: Of the run on `mirrored.tf`.
        recorded: By `deterministic`.
    """
    cells = values = 0
    differences: list[Difference] = []
    for cell in result.cells:
        theirs = recorded.get(str(cell.number), {})
        common = [where for where in theirs if where in cell.observed]
        if cell.status != "passed" or not common:
            continue
        cells += 1
        values += len(common)
        differences += [
            Difference(result.name, cell.number, where, cell.observed[where], theirs[where])
            for where in common
            if not agree(cell.observed[where], theirs[where])
        ]
    return Comparison(result.name, cells, values, differences)
