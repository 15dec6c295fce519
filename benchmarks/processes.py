"""Contenders in separate processes, driven over pipes."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = {
    "tensorflow_mirrored": ("TensorFlow", "BENCH_TENSORFLOW", ".venv-tensorflow"),
    "torch_ddp": ("PyTorch", "BENCH_TORCH", ".venv-torch"),
    "torch_compiled": ("PyTorch", "BENCH_TORCH", ".venv-torch"),
}


PREVIOUS_JAX = ("BENCH_PREVIOUS_JAX", ".venv-previous")
"""The newest JAX for the lowest supported Python (`make bench-previous`), for comparisons with the newest JAX."""


class ContenderError(Exception):
    """A contender could not execute a request."""


def interpreter(contender: str) -> str | None:
    """Returns the Python that has the packages of a contender; None if it is not installed.

    The Python of a peer is in `.venv-tensorflow` or `.venv-torch` (`make bench-peers` creates them), or an environment
    variable names it.
    """
    return _installed(*PEERS[contender][1:]) if contender in PEERS else sys.executable


def previous_interpreter() -> str | None:
    """Returns the Python that has the previous JAX; None if it is not installed."""
    return _installed(*PREVIOUS_JAX)


def _installed(variable: str, folder: str) -> str | None:
    path = Path(os.environ.get(variable) or HERE.parent / folder / "bin" / "python")
    return str(path) if path.exists() else None


class Process:
    """A process that runs one contender, or several that share a framework.

    Args:
        contender: The contender whose interpreter it uses.
        devices: Number of simulated CPU devices; ignored if there is an accelerator.
        timeout_seconds: Maximum time for an answer.
        python: Another interpreter, for the same contender on other versions.
    """

    def __init__(self, contender: str, devices: int, timeout_seconds: float = 200.0, python: str | None = None) -> None:
        python = python or interpreter(contender)
        if python is None:
            raise ContenderError(f"{PEERS[contender][0]} is not installed (make bench-peers)")
        self.contender = contender
        self.devices = devices
        self._timeout = timeout_seconds
        self._errors = tempfile.TemporaryFile("w+")
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [python, str(HERE / "serve.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            ContenderError: The request failed, or the process has ended or timed out.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(f"{self.contender} has ended: {self._stderr_tail()}") from None
        if not self._selector.select(self._timeout):
            self._process.kill()
            self._process.wait(10)
            raise ContenderError(f"{self.contender} did not answer {do!r} within {self._timeout:.0f} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            failure = ContenderError(f"{self.contender}: {answer['error']}")
            failure.add_note(answer.get("traceback", ""))
            raise failure
        return answer

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def make(self, job: str, workload: str, contender: str | None = None, **more: Any) -> dict[str, Any]:
        """Creates a job, named like its contender, and calls it once."""
        name = contender or self.contender
        return self.ask("make", name=name, contender=name, job=job, workload=workload, devices=self.devices, **more)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(40)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(10)
        self._errors.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stderr_tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-600:]
