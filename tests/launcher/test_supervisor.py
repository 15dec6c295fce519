"""The launcher of one machine, with workers and other launchers that are played."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirrored.launcher import supervisor as module
from mirrored.launcher.coordination import SingleMachine
from mirrored.launcher.job import Job
from mirrored.launcher.output import Output
from mirrored.launcher.supervisor import Supervisor


class Meeting(SingleMachine):
    """The other machines' workers run on when those of this machine have ended, until Ctrl-C."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__(2)
        self.starts, self._interrupt = 0, interrupt

    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        self.starts += 1
        return super().meet(restart, is_interrupted)

    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        self._interrupt()
        return "interrupted" if is_interrupted() else None


@pytest.mark.parametrize(("received", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_launcher_waits_for_other_machines_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, received: int, status: int
) -> None:
    def worker(job: Job, rank: int, environment: Any) -> Any:
        nothing: Callable[..., Any] = lambda *_, **__: None  # noqa: E731
        of_process = {"code": 0, "rank": rank, "group": rank, "failing": None, "note": None, "descriptors": []}
        return SimpleNamespace(**of_process, listen=nothing, pump=nothing, signal=nothing, end=nothing)

    monkeypatch.setattr(module, "Worker", worker)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    errors = io.BytesIO()
    output = Output(None, errors)
    meeting = Meeting(lambda: supervisor._note(received, None))
    supervisor = Supervisor(Job(program="train.py", workers=2, max_restarts=3), output, meeting)
    nothing = SimpleNamespace(add=lambda _: None, remove=lambda _: None)
    assert supervisor._run(nothing) == status  # type: ignore[arg-type]
    output.close(1)
    assert meeting.starts == 1
    assert errors.getvalue() == b"[mirrored] interrupted\n"


@pytest.mark.parametrize(("received", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_machines_have_met_ends_the_launcher_with_its_status(received: int, status: int) -> None:
    class Waiting(SingleMachine):
        def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
            supervisor._note(received, None)
            return None if is_interrupted() else []

    errors = io.BytesIO()
    output = Output(None, errors)
    supervisor = Supervisor(Job(program="train.py", workers=2, max_restarts=3), output, Waiting(2))
    assert supervisor._run(SimpleNamespace()) == status  # type: ignore[arg-type]
    output.close(1)
    assert errors.getvalue() == b"[mirrored] interrupted before the start\n"
