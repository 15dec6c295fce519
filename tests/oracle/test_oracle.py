"""`mirrored.tf` gives the answers that TensorFlow 2.21 gave (see README.md in this folder)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
FILES = sorted(path.name for path in HERE.glob("cases_*.py"))

# What closes with a later part of the work: whole topics (their names), or single cases.
OPEN: dict[str, str] = {}

# More than half a minute each on two cores.
SLOW = ("cases_optimizer_keras.py", "cases_tape.py", "cases_input.py", "cases_cross_device_ops.py")
# The others share processes, one for each number of replicas: most of the time of a file alone is their start.
GROUPS = [
    pytest.param([file for file in FILES if file not in SLOW], id="others"),
    *(pytest.param([file], id=file, marks=pytest.mark.slow) for file in SLOW),
]


def is_open(case: str) -> bool:
    return case in OPEN or case.partition(".")[0] in OPEN


@pytest.mark.multiprocess
@pytest.mark.timeout(500)
@pytest.mark.parametrize("files", GROUPS)
@pytest.mark.long
def test_the_answers_are_tensorflows(files: list[str], tmp_path: Path) -> None:
    settings = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "MIRRORED_VIRTUAL_DEVICES", "MIRRORED_VIRTUAL_KIND", "TF_CONFIG")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, str(HERE / "oracle.py"), "check", "--golden", str(HERE / "golden.json")]
    command += ["--json", str(tmp_path / "result.json"), *(str(HERE / file) for file in files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480)
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["no_golden"], done.stdout
    wrong = {one["id"]: one["reason"] for one in result["cases"] if not one["passed"] and not is_open(one["id"])}
    assert not wrong, json.dumps(wrong, indent=1)
    assert result["passed"] > 0 or all(is_open(one["id"]) for one in result["cases"])


def test_what_is_open_exists() -> None:
    cases = json.loads((HERE / "golden.json").read_text())["cases"]
    assert all(name in cases or name in {one["topic"] for one in cases.values()} for name in OPEN)
