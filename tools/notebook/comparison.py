"""Compares cells on `mirrored.tf` with the same cells on TensorFlow: deterministic results, and differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from notebook.observations import Observation, agree
from notebook.results import NotebookResult

Recording = dict[str, dict[str, dict[str, Observation]]]
"""Notebook -> cell number -> place -> observation on TensorFlow, equal in all of its runs."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A result that differs from TensorFlow's."""

    notebook: str
    cell: int
    where: str
    ours: Observation
    theirs: Observation


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The comparison of one notebook with its recording.

    Attributes:
        name: The name of the notebook.
        cells: Number of passed cells with at least one comparable result.
        values: Number of compared results.
        differences: The results that differ.
    """

    name: str
    cells: int
    values: int
    differences: Sequence[Difference]

    @property
    def differing_cells(self) -> int:
        """The number of cells with a result that differs."""
        return len({one.cell for one in self.differences})


def deterministic(runs: Sequence[NotebookResult]) -> dict[str, dict[str, Observation]]:
    """Returns the results of a notebook that are equal in every run on TensorFlow.

    This excludes unseeded random numbers, times and addresses, which differ between runs.

    Args:
        runs: At least two runs of the same notebook, each in a separate process.
    """
    first, *others = runs
    kept: dict[str, dict[str, Observation]] = {}
    for cell in first.cells:
        again = [next((one.observed for one in run.cells if one.number == cell.number), {}) for run in others]
        varying = {
            _value_of(where)
            for where, seen in cell.observed.items()
            if not all(where in other and agree(seen, other[where]) for other in again)
        }
        same = {where: seen for where, seen in cell.observed.items() if _value_of(where) not in varying}
        if same:
            kept[str(cell.number)] = same
    return kept


def _value_of(where: str) -> str:
    """Returns the value that a place is part of: ``name losses`` for ``name losses[6]``.

    Single elements of a list of random losses can be equal in two runs by chance.
    """
    return where.partition("[")[0]


def compare(result: NotebookResult, recorded: Mapping[str, Mapping[str, Observation]]) -> Comparison:
    """Compares the passed cells of a notebook with TensorFlow's results.

    A result that TensorFlow prints or shows and that ours lacks differs in form, not in value, and is omitted. An
    assigned name is compared if both have numbers under it.

    Args:
        result: The run on `mirrored.tf`.
        recorded: The result of `deterministic`.
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
