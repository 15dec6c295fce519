"""The cells of two processes: one job runs all update paths, and the test compares it with one process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cluster.jobs import SOURCE, job
from guarantees.cells import Cell, is_met
from guarantees.contract import bits_on_one_device

TESTS = Path(__file__).parents[1]


def check_on_two_processes(cells: list[Cell], directory: Path) -> None:
    """Runs a job with half of the devices on each worker; all cells have one layout."""
    each = cells[0].devices // 2
    environment = {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)]), "KERAS_BACKEND": "jax"}
    arguments = [str(cells[0].replicas), *(cell.path for cell in cells)]
    with job("guarantees_of_two", [each, each], directory, *arguments, **environment) as started:
        ended = started.ends(600)
    for worker, end in enumerate(ended):
        assert end.code == 0, f"worker {worker} ended with {end.code}:\n{end.output[-6000:]}"
    first, second = (found_by(end.output) for end in ended)
    for cell in cells:
        assert first[cell.path]["error"] is None, f"{cell.path}: {first[cell.path]['error']}"
        assert first[cell.path]["bits"] == second[cell.path]["bits"], f"{cell.path}: copies differ between workers"
        if not is_met(cell, "bits"):
            continue
        alone = bits_on_one_device(cell.path, "compiled", cell.replicas)
        assert first[cell.path]["bits"] == alone, f"{cell.path}: other bits than on one device"


def found_by(output: str) -> dict[str, Any]:
    """What a worker has reported, by path."""
    lines = [line.removeprefix("RESULT ") for line in output.splitlines() if line.startswith("RESULT ")]
    return {one["path"]: one for one in map(json.loads, lines)}
