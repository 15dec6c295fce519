"""Starts and supervises this machine's workers; ends or restarts all of them when one fails."""

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
# How long the launcher waits for the end of a lost peer to become visible, and for a failing worker to print. A killed
# process closes its sockets before it can be reaped, on a busy machine long before.
_BLAME_SECONDS: Final = 2.0
_SHOW_SECONDS: Final = 2.0
_INTERRUPTED: Final = 130
# How long a failed job waits for a reader of its output that does not read.
_READER_SECONDS: Final = 2.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """The reason why the launcher ends all workers.

    Attributes:
        reason: The reason, which names the worker.
        code: The exit status of the launcher.
    """

    reason: str
    code: int


class Supervisor:
    """A supervisor that starts the workers of one machine, and ends or restarts them when one fails.

    Args:
        job: The job.
        output: The destination of the workers' output.
        meeting: The coordination with the launchers of the other machines.
    """

    def __init__(self, job: Job, output: Output, meeting: Coordination) -> None:
        self._job = job
        self._output = output
        self._coordination = meeting
        self._workers: list[Worker] = []
        self._signals: list[int] = []
        self._terminated_at: float | None = None

    def run(self) -> int:
        """Runs the workers until they end, and restarts them after failures if allowed; returns the exit status.

        Context: the main thread, whose signals it handles.

        Returns:
            The exit status: 0 if every worker ended with 0; otherwise that of the worker that failed first, with 128
            plus the number for a signal; 130 after Ctrl-C.
        """
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # A signal that is ignored stays ignored: `nohup` ignores SIGHUP.
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._note) for number in handled}
        code = 1
        try:
            with ReaperClient() as reaper:
                code = self._run(reaper)
                return code
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._output.close(_READER_SECONDS if code or self._terminated_at is not None else None)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _run(self, reaper: ReaperClient) -> int:
        return self._restart_after(self._generation(reaper, 0), reaper)

    def _restart_after(self, failure: Failure | None, reaper: ReaperClient) -> int:
        """Restarts all workers after every failure, up to the job's limit of restarts; returns the exit status."""
        restart = 0
        while failure is not None:
            if failure.code == _INTERRUPTED or self._terminated_at is not None or restart >= self._job.max_restarts:
                self._output.say(failure.reason)
                return failure.code
            restart += 1
            every = "the worker" if self._job.num_workers == 1 else f"all {self._job.num_workers} workers"
            self._output.say(f"{failure.reason}; restarting {every} (restart {restart} of {self._job.max_restarts})")
            failure = self._generation(reaper, restart)
        return 0

    def _generation(self, reaper: ReaperClient, restart: int) -> Failure | None:
        """Starts all workers once, and waits until they have ended."""
        addresses = self._coordination.meet(restart, self._interrupted)
        if addresses is None:
            return self._interruption("interrupted before the start")
        try:
            for rank in self._job.ranks:
                environment = worker_environment(
                    self._job, rank, addresses, secret=self._coordination.secret, restart=restart
                )
                worker = Worker(self._job, rank, environment)
                reaper.add(worker.group)
                self._workers.append(worker)
            failure = self._watch()
        finally:
            self._end_all(reaper)
        if failure is not None:
            self._coordination.tell(failure.reason)
            return failure
        elsewhere = self._coordination.wait_for_the_others(self._interrupted)
        if elsewhere is None:
            return None
        if not self._interrupted():
            return Failure(elsewhere, 1)
        return self._interruption(elsewhere)

    def _interruption(self, reason: str) -> Failure:
        """Creates the `Failure` for a job that a signal has ended while the launcher waited for other machines."""
        if self._signals[0] != signal.SIGTERM:
            return Failure(reason, _INTERRUPTED)
        self._terminated_at = time.monotonic()  # so that nothing restarts
        return Failure(reason, 128 + signal.SIGTERM)

    def _interrupted(self) -> bool:
        return bool(self._signals)

    def _watch(self) -> Failure | None:
        """Waits until all workers have succeeded, or one has failed."""
        while True:
            self._wait_for_news()
            for worker in self._workers:
                worker.pump(self._output)
            failure = self._signalled() or self._failed() or self._failed_elsewhere()
            if failure is not None:
                return failure
            # The readers of the output may be slow, unless the job is to end.
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

    def _signalled(self) -> Failure | None:
        while self._signals:
            number = self._signals.pop(0)
            if number != signal.SIGTERM:
                for worker in self._running():
                    worker.signal(signal.SIGINT)
                self._wait_for_exits(_INTERRUPT_GRACE_SECONDS)
                return Failure("interrupted; all workers were ended", _INTERRUPTED)
            if self._terminated_at is None:
                self._terminated_at = time.monotonic()
                self._output.say(f"SIGTERM: the workers have {self._job.grace_seconds:g} s to save and end")
                for worker in self._running():
                    worker.terminate()
        if self._terminated_at is not None and time.monotonic() - self._terminated_at > self._job.grace_seconds:
            left = [str(worker.rank) for worker in self._running()]
            who = f"worker{'s' * (len(left) > 1)} {', '.join(left)}"
            return Failure(f"{who} had not ended {self._job.grace_seconds:g} s after SIGTERM", 128 + signal.SIGTERM)
        return None

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.code is None]

    def _wait_for_exits(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(worker.code is None for worker in self._workers):
            self._wait_for_news()
            for worker in self._workers:
                worker.listen()
                worker.pump(self._output)

    def _failed(self) -> Failure | None:
        return self._failed_among([worker for worker in self._workers if worker.listen()])

    def _failed_among(self, asking: list[Worker]) -> Failure | None:
        """Lets the worker that failed first print its error, and returns its failure; returns None if no worker failed.

        Args:
            asking: The workers that have failed and ask for permission to print their errors.
        """
        gone = [worker for worker in self._blamable() if worker.code not in (None, 0)]
        if not (asking or gone):
            return None
        if not gone and all(worker.failing and worker.failing[0] == LOST_PEER for worker in asking):
            # The end of the lost peer may become visible in a moment, unless it runs on another machine.
            self._wait_for_an_exit(_BLAME_SECONDS)
        culprit = min((worker for worker in self._blamable() if worker.failing or worker.code), key=_blame_order)
        if culprit.failing is not None:
            self._let_print_error(culprit)
            if culprit.failing[0] == HANG:
                self._collect_reports(culprit)
        return _failure_of(culprit, next((worker.note for worker in self._workers if worker.note), None))

    def _blamable(self) -> list[Worker]:
        """Returns the workers whose failure makes the job fail: all workers, unless a subclass excludes some."""
        return self._workers

    def _collect_reports(self, culprit: Worker) -> None:
        """After a hang, waits until the other workers have also detected the hang and printed their stack traces."""
        end = time.monotonic() + _SHOW_SECONDS
        others = [worker for worker in self._workers if worker is not culprit]
        while others and time.monotonic() < end:
            time.sleep(0.01)
            for worker in [one for one in others if one.listen() or one.failing or one.code is not None]:
                others.remove(worker)
                if worker.failing is not None:
                    self._let_print_error(worker)

    def _wait_for_an_exit(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            for worker in self._workers:
                worker.listen()
            if any(worker.code or _is_culprit(worker) for worker in self._workers):
                return

    def _let_print_error(self, worker: Worker) -> None:
        """Permits a failed worker to print its error, and waits, up to a time limit, until the error is printed."""
        worker.let_go()
        end = time.monotonic() + _SHOW_SECONDS
        while time.monotonic() < end and not worker.has_shown and worker.code is None:
            time.sleep(0.005)
            worker.listen()
            worker.pump(self._output)
        worker.pump(self._output)

    def _failed_elsewhere(self) -> Failure | None:
        reason = self._coordination.news()
        return None if reason is None else Failure(reason, 1)

    def _end_all(self, reaper: ReaperClient) -> None:
        for worker in self._workers:  # all at once: no worker should report the end of another
            worker.signal(signal.SIGKILL)
        for worker in self._workers:
            worker.end(self._output)
            reaper.remove(worker.group)
        self._workers.clear()


def _is_culprit(worker: Worker) -> bool:
    return worker.failing is not None and worker.failing[0] != LOST_PEER


def _blame_order(worker: Worker) -> tuple[int, int]:
    """Returns a sort key: a worker that failed by itself comes before those that failed as a consequence."""
    code = worker.code
    if _is_culprit(worker):
        return 0, worker.rank
    if code is not None and code not in (0, -signal.SIGABRT) and worker.failing is None:
        return 1, worker.rank
    # JAX's runtime aborts the workers when the coordinator is lost.
    return (2 if code == -signal.SIGABRT else 3), worker.rank


def _failure_of(worker: Worker, note: str | None) -> Failure:
    code = worker.code
    why = "" if note is None else f" ({note})"
    if worker.failing is not None:
        _, _, text = worker.failing[1].partition(" ")
        status = int(worker.failing[1].partition(" ")[0])
        return Failure(f"worker {worker.rank} {text}{why}", status)
    assert code is not None
    return Failure(f"worker {worker.rank} {words_for(code)}{why}", shell_code(code))
