"""The tests marked `gpu`, in a process of their own; one that ends the process does not take the rest along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpu.contest import TINY
from gpu.recording import Recorder, say

ROOT = Path(__file__).parents[2]
LOG_VARIABLE = "GPU_SUITE_LOG"
DRY_RUN_VARIABLE = "GPU_BENCHMARK_DRY_RUN"
"""With it, tests/conftest.py lets tests marked `gpu` run on a CPU."""
_STARTS = 4


def measure(recorder: Recorder) -> None:
    """Starts pytest, again without what has ended until all have."""
    done: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for _ in range(_STARTS):
            output = _run(log, list(done))
            entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            log.unlink(missing_ok=True)
            if not record_all(recorder, entries, done, output):
                break
    if not done:
        recorder.failed("pytest", 0.0, output)


def _run(log: Path, done: list[str]) -> str:
    environment = {**os.environ, LOG_VARIABLE: str(log)} | ({DRY_RUN_VARIABLE: "1"} if TINY else {})
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--timeout", "100", "-p", "gpu.suite_log"]
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT / "src"), str(ROOT / "benchmarks")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command += ["-p", "no:cacheprovider", "tests/on_gpu", *(f"--deselect={test}" for test in done)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = (ended.stdout + ended.stderr)[-8000:]
    say(output)
    return output


def record_all(recorder: Recorder, entries: Iterable[dict[str, str]], done: dict[str, str], output: str) -> bool:
    """Records one variant for each test that has ended.

    Args:
        recorder: Where.
        entries: Of the log.
        done: All tests so far, with what became of them; changed.
        output: Of pytest.

    Returns:
        Whether a test has ended the process (a crash, or its time limit): others may be left.
    """
    for entry in entries:
        done[entry["test"]] = entry["what"]
        if entry["what"] == "started":
            continue
        name, seconds = entry["test"], float(entry["seconds"])
        if entry["what"] == "passed":
            recorder.passed(name, seconds)
        elif entry["what"] == "skipped":
            recorder.left_out(name, entry["text"])
        else:
            recorder.failed(name, seconds, entry["text"])
    unfinished = [test for test, what in done.items() if what == "started"]
    for test in unfinished:
        done[test] = "ended the process"
        recorder.failed(test, 0.0, f"the process ended in this test\n{output}")
    return bool(unfinished)
