"""Input: `benchmarks/input.py` in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import HERE

from sections.options import Figures, Options, say


def measure(options: Options) -> Figures:
    """Returns batches per second next to a hand-written loop, and how much of the input the step hides."""
    say("input")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.json"
        rounds = "10" if options.quick else "40"
        subprocess.run(
            [sys.executable, str(HERE / "input.py"), "--rounds", rounds, "--json", str(path)],
            env={**os.environ, "MIRRORED_VIRTUAL_DEVICES": "4", "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
            timeout=200,
            check=True,
        )
        figures: Figures = json.loads(path.read_text())
        return figures
