"""The results of a notebook's cells."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from notebook.observations import Observation

Status = Literal["passed", "failed", "out of scope"]


@dataclasses.dataclass(frozen=True)
class CellResult:
    """The result of one cell.

    Attributes:
        number: Its number, from 1.
        status: Its status.
        seconds: Its run time.
        error: Type of the error and the first line of its message; empty if it passed.
        reason: Why it is out of scope; empty if it is in scope.
        trace: The complete traceback.
        observed: The numbers that the cell assigned, showed and printed, by place.
    """

    number: int
    status: Status
    seconds: float = 0.0
    error: str = ""
    reason: str = ""
    trace: str = ""
    observed: dict[str, Observation] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class NotebookResult:
    """The results of all cells of one notebook."""

    name: str
    cells: Sequence[CellResult]

    def count(self, status: Status) -> int:
        """Returns the number of cells with a status."""
        return sum(cell.status == status for cell in self.cells)

    @property
    def reasons(self) -> Counter[str]:
        """Returns the number of cells out of scope by reason."""
        return Counter(cell.reason for cell in self.cells if cell.status == "out of scope")

    def as_json(self) -> dict[str, object]:
        """Returns the results for ``--json``."""
        statuses: tuple[Status, ...] = ("passed", "failed", "out of scope")
        counts = {status.replace(" ", "_"): self.count(status) for status in statuses}
        cells = [{k: v for k, v in dataclasses.asdict(cell).items() if k != "observed"} for cell in self.cells]
        return {"notebook": self.name, "cells": len(self.cells), **counts, "results": cells}
