"""The README keeps its word: its example runs as it stands, and whatever it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)[0]


@pytest.mark.multiprocess
def test_example_runs_as_it_stands(tmp_path):
    program = tmp_path / "example.py"
    program.write_text(EXAMPLE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        env={**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"loss \d\.\d\de-(0[4-9]|1\d), w = \[ 1. -2.  3.\], on 4 replicas\n", done.stdout), done.stdout


def test_example_is_short():
    assert len(EXAMPLE.splitlines()) <= 25


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].split())
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", README)) <= targets


def test_files_exist():
    named = set(re.findall(r"\b(?:tests|docs|benchmarks|examples|src)/[\w/.-]+\w", README))
    assert named
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
