"""Runs a test file of TensorFlow in separate processes, one per worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tf_conformance.results import NOT_HERE, OTHER_WORKERS, Case, Outcome

_TOOLS: Final = Path(__file__).parents[1]
_SOURCE: Final = Path(__file__).parents[2] / "src"
_RANK: Final = {Outcome.PASSED: 0, Outcome.SKIPPED: 1, Outcome.FAILED: 2}


def run_file(tests: Path, file: str, *, workers: int, seconds: float, limit: float, only: str = "*") -> list[Case]:
    """Runs the tests of a file.

    Args:
        tests: The folder `tensorflow/python`.
        file: The path below it.
        workers: The number of worker processes. One simulates four GPUs; of several, each has a CPU.
        seconds: Time limit of a test in seconds.
        limit: Time limit of the file in seconds.
        only: Pattern of the tests to run.

    Returns:
        One case per test, the worst of all workers; without those that another number of workers runs. A process
        that does not reach its end adds a failed case.
    """
    with tempfile.TemporaryDirectory(prefix="tf_conformance_") as folder:
        outputs = [Path(folder, f"worker_{index}.jsonl") for index in range(workers)]
        logs = [output.with_suffix(".txt") for output in outputs]
        with contextlib.ExitStack() as stack:
            processes = [
                stack.enter_context(_started([str(tests), file, str(output), str(seconds), only], log, variables))
                for output, log, variables in zip(outputs, logs, _environments(workers, folder), strict=True)
            ]
            _wait(processes, limit)
        found: dict[str, Case] = {}
        for output, log in zip(outputs, logs, strict=True):
            for case in _read(output, log, file, workers):
                old = found.get(case.test)
                if old is None or _RANK[case.outcome] > _RANK[old.outcome]:
                    found[case.test] = case
    # What does not run here counts in the run of one worker only.
    elsewhere = OTHER_WORKERS if workers == 1 else NOT_HERE
    return [case for case in found.values() if elsewhere not in case.message]


@contextlib.contextmanager
def _started(arguments: list[str], log: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of `tf_conformance.worker`, killed with its children at the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tf_conformance.worker", *arguments],
            env={**os.environ, **variables},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(processes: list[subprocess.Popen[bytes]], limit: float) -> None:
    """Waits for all processes, or until the limit."""
    deadline = time.monotonic() + limit
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def _environments(workers: int, folder: str) -> list[dict[str, str]]:
    """The environment variables of every worker process."""
    shared = {
        "PYTHONPATH": os.pathsep.join([str(_SOURCE), str(_TOOLS)]),
        "KERAS_BACKEND": "jax",
        "TF_CONFORMANCE_WORKERS": str(workers),
        "MIRRORED_VIRTUAL_DEVICES": "4" if workers == 1 else "1",
        "MIRRORED_VIRTUAL_KIND": "GPU" if workers == 1 else "CPU",
    }
    if workers == 1:
        return [shared]
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(workers)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [{"type": "chief", "index": 0}, *({"type": "worker", "index": index} for index in range(workers - 1))]
    shared["TF_CONFORMANCE_FOLDER"] = folder
    return [{**shared, "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _read(output: Path, log: Path, file: str, workers: int) -> Iterator[Case]:
    """The cases of one process, and a failed one if it did not reach its end."""
    lines = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    for line in lines:
        if not line.get("end"):
            yield Case(file, line["test"], Outcome(line["outcome"]), line["message"], workers)
    if not any(line.get("end") for line in lines):
        started = [line["test"] for line in lines][-1:]
        text = f"the process ended after {started}: {log.read_text(errors='replace')[-1500:]}"
        yield Case(file, "<process>", Outcome.FAILED, text, workers)
