"""Goes on where other numbers of processes have left off: ``across.py ORDER FOLDER LAYOUT...``.

Without layouts: trains in several ways.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from training import Midway, outcomes, several_per_call

import mirrored as mr

order, folder, *layouts = sys.argv[1:]
strategy = mr.MultiWorkerMirroredStrategy(deterministic=order == "deterministic")
found: dict[str, Any] = {}
if layouts:
    midway = Midway(strategy)
    midway.leave(Path(folder) / "2x2")
    found = {origin: midway.go_on(Path(folder) / origin) for origin in ("2x2", *layouts)}
else:
    found = outcomes(strategy, "eager") | {"several": several_per_call(strategy)}
print("RESULT", json.dumps(found), flush=True)
