"""Running small programs on several workers, in this process or with a launcher of their own."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrored.launcher import Job
from mirrored.launcher.coordination import SingleMachine
from mirrored.launcher.output import Output
from mirrored.launcher.rendezvous import LauncherRendezvous
from mirrored.launcher.supervisor import Supervisor

# What every program here begins with.
PRELUDE = """
import json, os, signal, subprocess, sys, time
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0
restart = int(os.environ["MIRRORED_RESTART"])
folder = os.path.dirname(os.path.abspath(__file__))
def note(name, text=""):
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)
def wait_for(name):
    end = time.monotonic() + 30
    while not os.path.exists(os.path.join(folder, name)):
        assert time.monotonic() < end, name
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(PRELUDE + textwrap.dedent(text))
    return str(path)


class Ran:
    """A job that was run to its end in this process."""

    def __init__(self, job: Job, *, meanwhile: Callable[[], None] | None = None) -> None:
        out, errors = io.BytesIO(), io.BytesIO()
        helper = threading.Thread(target=meanwhile) if meanwhile is not None else None
        if helper is not None:
            helper.start()
        meeting = SingleMachine(job.workers) if job.nodes == 1 else LauncherRendezvous(job)
        try:
            self.code = Supervisor(job, Output(out, errors, directory=job.log_directory), meeting).run()
        finally:
            meeting.close()
        self.ended_at = time.monotonic()
        if helper is not None:
            helper.join(30)
        self.out, self.errors = out.getvalue().decode(), errors.getvalue().decode()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
