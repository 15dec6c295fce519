"""Starts the workers of this machine, watches them, and ends or restarts all when one fails."""

from __future__ import annotations

import dataclasses
import selectors
import signal
import time
from types import FrameType
from typing import Final

from mirrored.launcher.coordination import Coordination
from mirrored.launcher.environment import worker_environment
from mirrored.launcher.job import Job
from mirrored.launcher.output import Output
from mirrored.launcher.reaper_client import ReaperClient
from mirrored.launcher.worker import HANG, LOST_PEER, Worker, shell_code, words_for

_TICK_SECONDS: Final = 0.05
_INTERRUPT_GRACE_SECONDS: Final = 0.5
# How long a worker that has lost a peer waits for that peer's end to be noticed, and a failing one to print. A killed
# process closes its sockets before it can be reaped, on a busy machine long before.
_BLAME_SECONDS: Final = 2.0
_SHOW_SECONDS: Final = 2.0
_INTERRUPTED: Final = 130
# How long a job that has failed waits for whoever reads its output, and stands still.
_READER_SECONDS: Final = 2.0


@dataclasses.dataclass(frozen=True)
class _Failure:
    """Why the workers were ended.

    Attributes:
        reason: In words, with the worker's name.
        code: The exit status that the launcher then has.
    """

    reason: str
    code: int


class Supervisor:
    """Runs a job to its end.

    Args:
        job: What is run.
        output: Where the workers' output goes.
        meeting: With the launchers of the other machines.
    """

    def __init__(self, job: Job, output: Output, meeting: Coordination) -> None:
        self._job = job
        self._output = output
        self._meeting = meeting
        self._workers: list[Worker] = []
        self._signals: list[int] = []
        self._terminated_at: float | None = None

    def run(self) -> int:
        """Starts the workers, again after a failure if the job allows it, until they have ended.

        Context: the main thread, whose signals it takes.

        Returns:
            The exit status: 0 if every worker ended with 0; that of the worker that failed first, 128 and the number
            for a signal; 130 after Ctrl-C.
        """
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # What is ignored stays ignored: `nohup` does so with SIGHUP.
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._note) for number in handled}
        code = 1
        try:
            with ReaperClient() as guard:
                code = self._run(guard)
                return code
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._output.close(_READER_SECONDS if code or self._terminated_at is not None else None)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _run(self, guard: ReaperClient) -> int:
        restart = 0
        while True:
            failure = self._generation(guard, restart)
            if failure is None:
                return 0
            if failure.code == _INTERRUPTED or self._terminated_at is not None or restart >= self._job.max_restarts:
                self._output.say(failure.reason)
                return failure.code
            restart += 1
            every = "the worker" if self._job.num_workers == 1 else f"all {self._job.num_workers} workers"
            self._output.say(
                f"{failure.reason}; starting {every} again (restart {restart} of {self._job.max_restarts})"
            )

    def _generation(self, guard: ReaperClient, restart: int) -> _Failure | None:
        """Runs all workers once."""
        addresses = self._meeting.meet(restart, self._interrupted)
        if addresses is None:
            return _Failure("interrupted before the start", _INTERRUPTED)
        try:
            for rank in self._job.ranks:
                environment = worker_environment(
                    self._job, rank, addresses, secret=self._meeting.secret, restart=restart
                )
                worker = Worker(self._job, rank, environment)
                guard.add(worker.group)
                self._workers.append(worker)
            failure = self._watch()
        finally:
            self._end_all(guard)
        if failure is not None:
            self._meeting.tell(failure.reason)
            return failure
        elsewhere = self._meeting.wait_for_the_others(self._interrupted)
        return None if elsewhere is None else _Failure(elsewhere, 1)

    def _interrupted(self) -> bool:
        return bool(self._signals)

    def _watch(self) -> _Failure | None:
        """Waits until all have ended well, or one has not."""
        while True:
            self._wait_for_news()
            for worker in self._workers:
                worker.pump(self._output)
            failure = self._signalled() or self._failed() or self._failed_elsewhere()
            if failure is not None:
                return failure
            # Who reads may take their time, unless this is to end.
            may_end = self._output.has_room or self._terminated_at is not None
            if may_end and all(worker.code == 0 for worker in self._workers):
                return None

    def _wait_for_news(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                for descriptor in worker.descriptors:
                    selector.register(descriptor, selectors.EVENT_READ)
            if selector.get_map() and self._output.has_room:
                selector.select(_TICK_SECONDS)
            else:
                time.sleep(_TICK_SECONDS)

    def _signalled(self) -> _Failure | None:
        while self._signals:
            number = self._signals.pop(0)
            if number != signal.SIGTERM:
                self._send(signal.SIGINT)
                self._settle(_INTERRUPT_GRACE_SECONDS)
                return _Failure("interrupted; all workers were ended", _INTERRUPTED)
            if self._terminated_at is None:
                self._terminated_at = time.monotonic()
                self._output.say(f"SIGTERM: the workers have {self._job.grace_seconds:g} s to save and end")
                self._send(signal.SIGTERM)
        if self._terminated_at is not None and time.monotonic() - self._terminated_at > self._job.grace_seconds:
            left = [str(worker.rank) for worker in self._workers if worker.code is None]
            who = f"worker{'s' * (len(left) > 1)} {', '.join(left)}"
            return _Failure(f"{who} had not ended {self._job.grace_seconds:g} s after SIGTERM", 128 + signal.SIGTERM)
        return None

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.code is None:
                worker.signal(number)

    def _settle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(worker.code is None for worker in self._workers):
            self._wait_for_news()
            for worker in self._workers:
                worker.listen()
                worker.pump(self._output)

    def _failed(self) -> _Failure | None:
        asking = [worker for worker in self._workers if worker.listen()]
        gone = [worker for worker in self._workers if worker.code not in (None, 0)]
        if not (asking or gone):
            return None
        if not gone and all(worker.failing and worker.failing[0] == LOST_PEER for worker in asking):
            # Who was lost? Its end may be noticed in a moment; a worker of another machine is not seen here.
            self._settle_until_gone(_BLAME_SECONDS)
        culprit = min((worker for worker in self._workers if worker.failing or worker.code), key=_innocence)
        if culprit.failing is not None:
            self._await_words_of(culprit)
            if culprit.failing[0] == HANG:
                self._hear_the_others(culprit)
        return _failure_of(culprit, next((worker.note for worker in self._workers if worker.note), None))

    def _hear_the_others(self, culprit: Worker) -> None:
        """In a hang all workers have come to the end of their patience, and what each is doing is of interest."""
        end = time.monotonic() + _SHOW_SECONDS
        others = [worker for worker in self._workers if worker is not culprit]
        while others and time.monotonic() < end:
            time.sleep(0.01)
            for worker in [one for one in others if one.listen() or one.failing or one.code is not None]:
                others.remove(worker)
                if worker.failing is not None:
                    self._await_words_of(worker)

    def _settle_until_gone(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            for worker in self._workers:
                worker.listen()
            if any(worker.code or _is_culprit(worker) for worker in self._workers):
                return

    def _await_words_of(self, worker: Worker) -> None:
        """Shows the error of the worker that failed, before anything that the others say of it."""
        worker.let_go()
        end = time.monotonic() + _SHOW_SECONDS
        while time.monotonic() < end and not worker.has_shown and worker.code is None:
            time.sleep(0.005)
            worker.listen()
            worker.pump(self._output)
        worker.pump(self._output)

    def _failed_elsewhere(self) -> _Failure | None:
        reason = self._meeting.news()
        return None if reason is None else _Failure(reason, 1)

    def _end_all(self, guard: ReaperClient) -> None:
        for worker in self._workers:  # all at once: none must see the end of another
            worker.signal(signal.SIGKILL)
        for worker in self._workers:
            worker.end(self._output)
            guard.remove(worker.group)
        self._workers.clear()


def _is_culprit(worker: Worker) -> bool:
    return worker.failing is not None and worker.failing[0] != LOST_PEER


def _innocence(worker: Worker) -> tuple[int, int]:
    """Sorts those that failed: the one that failed by itself first."""
    code = worker.code
    if _is_culprit(worker):
        return 0, worker.rank
    if code is not None and code not in (0, -signal.SIGABRT) and worker.failing is None:
        return 1, worker.rank
    # JAX's runtime aborts when the coordinator is gone.
    return (2 if code == -signal.SIGABRT else 3), worker.rank


def _failure_of(worker: Worker, note: str | None) -> _Failure:
    code = worker.code
    why = "" if note is None else f" ({note})"
    if worker.failing is not None:
        _, _, text = worker.failing[1].partition(" ")
        status = int(worker.failing[1].partition(" ")[0])
        return _Failure(f"worker {worker.rank} {text}{why}", status)
    assert code is not None
    return _Failure(f"worker {worker.rank} {words_for(code)}{why}", shell_code(code))
