"""Runs a program in a new Python process, without the settings of the process of the tests."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program on the CPU with some environment variables; warnings are errors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
