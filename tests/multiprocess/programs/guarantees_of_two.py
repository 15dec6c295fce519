"""All update paths on the workers of a job: ``guarantees_of_two.py replicas paths...``; reports errors and bits."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import mirrored as mr
from guarantees.cells import Cell
from guarantees.contract import Run, check_failure, check_warm_epoch
from mirrored.testing import assert_copies_equal


def look(path: str, replicas: int, strategy: Any) -> str:
    """Checks a path; the bits after two epochs."""
    cell = Cell(path, "two processes", replicas, replicas)  # the strategy says where the devices are
    run = Run(cell, strategy)
    for _ in range(2):
        run.assert_losses(run.epoch())
        run.assert_trained()
    bits = run.bits()
    check_warm_epoch(run)  # before other variables are read: their next step copies them, which compiles the copy
    assert_copies_equal(list(run.path.variables()))
    check_failure(cell, strategy)
    return bits


replicas, *paths = sys.argv[1:]
strategy = mr.MultiWorkerMirroredStrategy(num_replicas=int(replicas), deterministic=True)
for path in paths:
    result: dict[str, Any] = {"path": path, "bits": None, "error": None}
    try:
        result["bits"] = look(path, int(replicas), strategy)
    except Exception:
        result["error"] = traceback.format_exc()[-3000:]
    print("RESULT", json.dumps(result), flush=True)
