"""The guarantee matrix: update path x way of running x layout, each cell held to all guarantees.

By default a few cells of each path; `make guarantees` runs all of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guarantees.cells import CELLS, LAYOUTS, MOST_REFUSED, MOST_UNMET, PATHS, REFUSED, UNMET, Cell, is_met
from guarantees.contract import check, check_interrupts
from guarantees.two_processes import check_on_two_processes
from mirrored.errors import MirroredError

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.timeout(900),
]


def _default(cells: list[Cell]) -> set[Cell]:
    """A cell of each path with one way after the other, eagerly, compiled and uneven; another layout for each."""
    chosen = set()
    for number, path in enumerate(PATHS):
        of_path = [cell for cell in cells if cell.path == path and cell.devices > 1]
        uneven = [cell for cell in of_path if cell.is_uneven]
        chosen.add(uneven[(3 * number) % len(uneven)])
        of_path = [cell for cell in of_path if cell.replicas < 8 and not cell.is_uneven]
        for eager in (True, False):
            candidates = [cell for cell in of_path if (cell.way == "eager") is eager]
            chosen.add(candidates[(5 * number) % len(candidates)])
    return chosen


IN_ONE_PROCESS = [cell for cell in CELLS if cell.way != "two processes" and cell.refusal is None]
DEFAULT = _default(IN_ONE_PROCESS)


def _params(cells: list[Cell]) -> list[Any]:
    return [
        pytest.param(cell, id=cell.id, marks=() if cell in DEFAULT else (pytest.mark.slow, pytest.mark.guarantees))
        for cell in cells
    ]


@pytest.mark.parametrize("cell", _params(IN_ONE_PROCESS))
@pytest.mark.sampled(5)
@pytest.mark.first(1)
def test_a_cell_keeps_all_guarantees(cell: Cell) -> None:
    check(cell)


@pytest.mark.slow
@pytest.mark.guarantees
@pytest.mark.parametrize("cell", _params([cell for cell in IN_ONE_PROCESS if is_met(cell, "interrupt")]))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # some hit a finalizer
def test_interrupts_leave_the_state_whole(cell: Cell) -> None:
    check_interrupts(cell)


@pytest.mark.slow
@pytest.mark.guarantees
@pytest.mark.multiprocess
@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS["two processes"], ids=lambda count: str(count))
def test_two_processes_keep_all_guarantees(tmp_path: Path, devices: int, replicas: int) -> None:
    cells = [cell for cell in CELLS if (cell.way, cell.devices, cell.replicas) == ("two processes", devices, replicas)]
    check_on_two_processes([cell for cell in cells if cell.refusal is None], tmp_path)


def test_what_is_refused_says_so() -> None:
    for (path, kind), refusal in REFUSED.items():
        if kind == "two processes":
            continue  # the test below
        cell = next(cell for cell in CELLS if (cell.path, cell.way) == (path, kind) and cell.devices > 1)
        with pytest.raises(MirroredError, match=refusal.message):
            check(cell)


@pytest.mark.slow
@pytest.mark.guarantees
@pytest.mark.multiprocess
def test_what_is_refused_on_two_processes_says_so(tmp_path: Path) -> None:
    for cell in (cell for cell in CELLS if cell.refusal is not None and cell.way == "two processes"):
        if cell.devices == 2:
            assert cell.refusal is not None
            with pytest.raises(AssertionError, match=cell.refusal.message):
                check_on_two_processes([cell], tmp_path / cell.id)


def test_refusals_and_defects_do_not_become_more() -> None:
    refused = sum(cell.refusal is not None for cell in CELLS)
    assert refused == MOST_REFUSED, "fewer refusals: lower MOST_REFUSED; more: support the path instead"
    assert len(UNMET) == MOST_UNMET, "fewer defects: lower MOST_UNMET; more: fix them instead"


def test_the_table_in_the_documentation_is_the_generated_one() -> None:
    command = [sys.executable, str(ROOT / "tools" / "guarantee_table.py"), "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
