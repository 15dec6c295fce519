"""Starts the workers of a job as processes of this machine, and hears what they have found."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mirrored.cluster.tasks import Process

PROGRAMS = Path(__file__).parents[1] / "multiprocess" / "programs"
SOURCE = Path(__file__).parents[2] / "src"


@dataclasses.dataclass
class Ended:
    """How a worker ended."""

    code: int
    output: str

    @property
    def result(self) -> Any:
        """What the program gave to `report`."""
        lines = [line for line in self.output.splitlines() if line.startswith("RESULT ")]
        assert lines, f"exit status {self.code}:\n{self.output[-4000:]}"
        return json.loads(lines[-1].removeprefix("RESULT "))


class Job:
    """The workers of one program.

    Args:
        program: A file in `programs`.
        devices: How many virtual devices each worker has.
        arguments: Of the program.
        directory: Where output goes.
        environment: More of it.
    """

    def __init__(
        self,
        program: str,
        devices: Sequence[int],
        directory: Path,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(devices))]
        directory.mkdir(parents=True, exist_ok=True)
        self._logs = [directory / f"{program}-{worker}-{time.monotonic_ns()}.log" for worker in range(len(devices))]
        self.workers = []
        for worker, count in enumerate(devices):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
            settings = {
                **{
                    name: value
                    for name, value in os.environ.items()
                    if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
                },
                "TF_CONFIG": json.dumps(task),
                "MIRRORED_VIRTUAL_DEVICES": str(count),
                "MIRRORED_RENDEZVOUS_SECONDS": "40",
                "MIRRORED_AGREEMENT_SECONDS": "40",
                "JAX_PLATFORMS": "cpu",
                "PYTHONPATH": str(SOURCE),
                **(environment or {}),
            }
            with self._logs[worker].open("wb") as log:
                command = [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments]
                self.workers.append(subprocess.Popen(command, env=settings, stdout=log, stderr=subprocess.STDOUT))

    def output(self, worker: int) -> str:
        """What a worker has printed so far."""
        return self._logs[worker].read_text(errors="replace")

    def wait_for(self, worker: int, words: str, seconds: float = 40) -> None:
        """Waits until a worker has printed some words."""
        limit = time.monotonic() + seconds
        while words not in self.output(worker):
            assert time.monotonic() < limit, f"no {words!r} within {seconds} s:\n{self.output(worker)[-4000:]}"
            assert self.workers[worker].poll() is None, f"it ended:\n{self.output(worker)[-4000:]}"
            time.sleep(0.05)

    def ends(self, seconds: float = 50) -> list[Ended]:
        """How the workers end, at the latest in so many seconds."""
        limit = time.monotonic() + seconds
        codes = [worker.wait(max(0.1, limit - time.monotonic())) for worker in self.workers]
        return [Ended(code, self.output(worker)) for worker, code in enumerate(codes)]

    def kill(self) -> None:
        """Leaves nothing behind."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGKILL)
            worker.wait(10)


def module_of(program: str) -> Any:
    """A program as a module of this process, which computes what several workers are expected to."""
    specification = importlib.util.spec_from_file_location(program, PROGRAMS / f"{program}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@contextlib.contextmanager
def job(program: str, devices: Sequence[int], directory: Path, *arguments: str, **environment: str) -> Iterator[Job]:
    """A job that is gone after the block."""
    started = Job(program, devices, directory, arguments, environment)
    try:
        yield started
    finally:
        started.kill()


def run(
    program: str, devices: Sequence[int], directory: Path, *arguments: str, seconds: float = 50, **environment: str
) -> list[Any]:
    """What all workers of a job report, which must end well, at the latest in so many seconds."""
    with job(program, devices, directory, *arguments, **environment) as started:
        ended = started.ends(seconds)
    for worker, end in enumerate(ended):
        assert end.code == 0, f"worker {worker} ended with {end.code}:\n{end.output[-4000:]}"
    return [end.result for end in ended]


def processes(count: int) -> list[Process]:
    """The processes of a job on this machine, with the addresses of free ports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = tuple(f"127.0.0.1:{port + index}" for index in range(count))
    return [Process(addresses[0], count, index, addresses) for index in range(count)]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
