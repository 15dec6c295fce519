"""The tutorials run as plain Python files. Each compares its results with those of the program that it starts from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.long
def test_tutorial_runs(path: Path, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    done = subprocess.run(
        [sys.executable, path],
        env={**kept, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_checks_its_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "np.testing.assert_" in text or "\nassert " in text
