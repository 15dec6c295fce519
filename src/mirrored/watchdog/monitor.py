"""The watchdog of one worker: sends the worker's progress to the others, and ends a job that cannot continue."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Final

from mirrored import config, settings
from mirrored._jax import distributed
from mirrored._threads import start
from mirrored.watchdog import hang_detection
from mirrored.watchdog.collective_log import collective_log
from mirrored.watchdog.fail_fast_exit import (
    FOLLOWS,
    all_stacks,
    delay_aborts,
    fail_fast,
    has_launcher,
    in_forked_children,
    is_aborting,
    lost_worker_error,
    report_exit_by,
    tell_launcher,
)
from mirrored.watchdog.peer_connection import Address, PeerConnection
from mirrored.watchdog.worker_progress import WorkerProgress

_ROOT: Final = "mirrored/watch"
_ADDRESS_KEY: Final = "mirrored/watchdog"
_ADDRESS_SECONDS: Final = 60.0
_INTERVAL_SECONDS: Final = 1.0
# A mismatch must be seen twice: the workers post at different times, so that one look may mix old and new progress.
_CONFIRMATIONS: Final = 2
_SHUTDOWN_SECONDS: Final = 10.0
_OWN_REPORT_SECONDS: Final = 3.0
_JAX_SECONDS: Final = 1.0
_ENDING_SECONDS: Final = 0.2


class Watchdog:
    """The watchdog of one worker: two threads that detect deadlocks, mismatched collectives and lost workers.

    One thread posts this worker's progress to the coordinator's key-value store and reads that of the others. The other
    thread evaluates it. They are separate because a stopped coordinator blocks the first one, and must be reported too.

    Args:
        worker: The index of this worker.
        heartbeat_seconds: How long JAX's runtime waits for a heartbeat before it considers a process dead.
    """

    def __init__(self, worker: int, heartbeat_seconds: float) -> None:
        self._worker = worker
        self._heartbeat_seconds = heartbeat_seconds
        self._name = f"{socket.gethostname()}, process {os.getpid()}"
        self._beat = 0
        self._has_ended = self._leaves = False
        self._wake = threading.Event()
        self._board: dict[int, WorkerProgress] = {}
        self._changed_at: dict[int, float] = {}
        self._moved_at = self._answered_at = time.monotonic()
        self._reported_silent: set[int] = set()
        self._reported_alone: set[tuple[int, str, str]] = set()
        self._suspicions: list[str] = []
        self._peers: PeerConnection | None = None

    def start(self) -> None:
        """Starts the watchdog's threads, connects to the other workers, and registers handlers for the process exit."""
        self._posting = threading.Thread(target=self._post, name="mirrored-posting", daemon=True)
        detecting = threading.Thread(target=self._detect, name="mirrored-hang-detection", daemon=True)
        start(self._posting, detecting)
        self._connect_peers()
        report_exit_by(self._report_exit, self._suspect)
        atexit.register(self._end)
        in_forked_children(self._reset)

    def stop(self) -> None:
        """Stops the watchdog's threads; waits until the thread that uses JAX's client has ended.

        This worker leaves a membership epoch of an elastic job. Its program goes on, so it posts no end: workers that
        have not left yet still read the posts.
        """
        self._leaves = True
        atexit.unregister(self._end)
        self._end()

    def _reset(self) -> None:
        """Stops watching in a forked child, which is not a worker."""
        atexit.unregister(self._end)
        self._has_ended, self._peers = True, None

    def _connect_peers(self) -> None:
        """Opens the peer connection, unless a launcher supervises the workers."""
        peers = PeerConnection(self._worker, self._heartbeat_seconds, self._on_lost_peer)
        address: Address | None = None
        host = distributed.address().rpartition(":")[0].strip("[]")
        if self._worker == 0:
            with contextlib.suppress(OSError):
                address = None if has_launcher() else peers.listen(host)
            distributed.put(_ADDRESS_KEY, json.dumps(None if address is None else dataclasses.astuple(address)))
        elif not has_launcher():
            fields = json.loads(distributed.get(_ADDRESS_KEY, _ADDRESS_SECONDS))
            if fields is not None:
                address = Address(*fields)
                peers.connect(host, address)
        if address is not None:
            self._peers = peers
            delay_aborts()

    def _interval(self) -> float:
        return min(_INTERVAL_SECONDS, config.watchdog_seconds() / 4, self._heartbeat_seconds / 4)

    def _end(self) -> None:
        """Tells the other workers that this worker's program has ended, before JAX's shutdown barrier waits for them.

        It joins the posting thread: the process would abort if Python ended while a thread is inside JAX's client.
        """
        self._has_ended = True
        if self._peers is not None:
            self._peers.announce_end("bye")
        self._wake.set()
        self._posting.join(_SHUTDOWN_SECONDS)

    def _post(self) -> None:
        while True:
            self._beat += 1
            has_ended = self._has_ended
            if has_ended and self._leaves:
                return
            progress = collective_log.progress(beat=self._beat, has_ended=has_ended, name=self._name)
            found: dict[str, str] | None
            try:
                distributed.post(f"{_ROOT}/{self._worker}", json.dumps(progress.to_json()))
                found = distributed.get_all_below(_ROOT)
            except Exception:  # the client has shut down, or the coordinator is lost: JAX's runtime handles it
                found = None
            if has_ended:
                return
            if found is not None:
                self._take({int(key): WorkerProgress.from_json(json.loads(text)) for key, text in found.items()})
            # Often at first, so that the workers soon know each other.
            self._wake.wait(min(self._interval(), 0.1 * self._beat))
            self._wake.clear()

    def _take(self, board: dict[int, WorkerProgress]) -> None:
        now = self._answered_at = time.monotonic()
        earlier, self._board = self._board, board  # before `_changed_at`, whose workers the other thread looks up here
        for worker, progress in board.items():
            before = earlier.get(worker)
            if before is None or before.beat != progress.beat:
                self._changed_at[worker] = now
                self._reported_silent.discard(worker)
            if before is None or (before.count, before.inside, before.has_ended) != (
                progress.count, progress.inside, progress.has_ended
            ):  # fmt: skip
                self._moved_at = now

    def _detect(self) -> None:
        while True:
            time.sleep(self._interval())
            if self._has_ended:
                return
            self._report_silence()
            self._fail_before_jax()
            board = self._board
            limit = config.watchdog_seconds()
            still = time.monotonic() - self._moved_at
            self._confirm(hang_detection.mismatched_calls(board) or hang_detection.ended_early(board))
            if not self._suspicions:
                self._warn_of_unmatched_calls(board)
            verdict = hang_detection.deadlock(board, still, limit)
            if verdict is not None:
                self._fail(f"{verdict}\n  (the limit is {settings.WATCHDOG_SECONDS.name}={limit:g})")

    def _confirm(self, certain: str | None) -> None:
        """Ends the job after several consecutive checks found a mismatch; reports the mismatch of the first check."""
        self._suspicions = [] if certain is None else [*self._suspicions, certain]
        if len(self._suspicions) >= _CONFIRMATIONS:
            self._fail(self._suspicions[0])

    def _warn_of_unmatched_calls(self, board: Mapping[int, WorkerProgress]) -> None:
        """Warns if a collective call of this worker may be paired with another worker's call from a different line.

        Only the next mismatch proves it.
        """
        for key, text in hang_detection.unmatched_calls(board).items():
            if key[0] == self._worker and key not in self._reported_alone:
                print(
                    f"mirrored: {text}. Unless another branch of the program makes the matching call there, the "
                    "workers are one call apart from here on: make each call on all workers or on none",
                    file=sys.stderr,
                    flush=True,
                )
                self._reported_alone.add(key)

    def _report_silence(self) -> None:
        """Reports each worker whose heartbeats have stopped, shortly before JAX's runtime ends the other workers."""
        limit, now = 0.7 * self._heartbeat_seconds, time.monotonic()
        if now - self._answered_at > limit:
            silent = [0]
        else:
            changed, board = dict(self._changed_at), self._board
            since = {worker: now - at for worker, at in changed.items() if not board[worker].has_ended}
            silent = hang_detection.without_heartbeat(since, limit)
        for worker in silent:
            if worker in self._reported_silent or worker == self._worker:
                continue
            self._reported_silent.add(worker)
            name = self._board[worker].name if worker in self._board else "the coordinator"
            text = (
                f"worker {worker} ({name}) has sent no heartbeat for {limit:.0f} s: its process is stopped, its "
                "machine is down, or native code there blocks Python"
            )
            print(f"mirrored: {text}", file=sys.stderr, flush=True)
            tell_launcher(text)

    def _report_exit(self, kind: str, text: str) -> None:
        """Tells the other workers why this worker ends.

        The prefix `FOLLOWS` marks causes that every worker detects itself: a hang or a lost worker.
        """
        if self._peers is not None and kind not in ("hang", "lost-peer"):
            self._peers.announce_end("failing", text)
        elif self._peers is not None:
            self._peers.announce_end("failing", f"{FOLLOWS} {text}")

    def _on_lost_peer(self, worker: int, report: str) -> None:
        """Ends this worker because another worker's process has ended."""
        if report.startswith(FOLLOWS):
            time.sleep(_OWN_REPORT_SECONDS)  # this worker detects the same cause in a moment, and reports it better
        age = self._age(worker)
        self._wait_for_jax_message(worker)
        error = lost_worker_error(worker, self._board.get(worker), report.removeprefix(FOLLOWS).strip(), age)
        text = "".join(traceback.format_exception_only(error)).rstrip()
        fail_fast("lost-peer", 1, text, lambda: print(text, file=sys.stderr, flush=True))

    def _wait_for_jax_message(self, lost: int) -> None:
        """Waits until JAX's runtime has printed its message, so that the watchdog's message comes last.

        Worker 0 waits for the others to end instead: its own end makes JAX's runtime abort them.
        """
        end = time.monotonic() + (_JAX_SECONDS if lost == 0 else _ENDING_SECONDS if self._worker == 0 else 0.0)
        while time.monotonic() < end and not is_aborting():
            time.sleep(0.01)

    def _fail_before_jax(self) -> None:
        """Ends this worker with a report about a stopped worker, before JAX's runtime aborts the process."""
        text = None if self._peers is None else self._suspect()
        if text is not None and is_aborting():
            fail_fast("lost-peer", 1, text, lambda: print(text, file=sys.stderr, flush=True))

    def _age(self, worker: int) -> float:
        return time.monotonic() - self._changed_at.get(worker, self._answered_at)

    def _suspect(self) -> str | None:
        """Returns the error for the worker with the oldest heartbeat; None if all heartbeats are recent."""
        limit = 3 * self._interval()
        if time.monotonic() - self._answered_at > limit:
            worker = 0
        else:
            ages = {other: self._age(other) for other, one in self._board.items() if not one.has_ended}
            worker = max(ages, key=ages.__getitem__, default=self._worker)
        if worker == self._worker or self._age(worker) <= limit:
            return None
        error = lost_worker_error(worker, self._board.get(worker), "", self._age(worker))
        return "".join(traceback.format_exception_only(error)).rstrip()

    def _fail(self, verdict: str) -> None:
        def show() -> None:
            print(f"mirrored: the workers cannot continue: {verdict}", file=sys.stderr)
            print(f"Thread stacks of worker {self._worker}:\n\n{all_stacks()}", file=sys.stderr, flush=True)

        fail_fast("hang", 1, f"cannot continue: {' '.join(verdict.split())[:600]}", show)


_started: list[Watchdog] = []


@distributed.on_leave
def stop_watchdog() -> None:
    """Stops the watchdog of the job that this process leaves, if the watchdog is running."""
    while _started:
        _started.pop().stop()


def start_watchdog(heartbeat_seconds: float) -> None:
    """Starts the watchdog for the job that this process has joined, unless it is already running.

    Args:
        heartbeat_seconds: How long JAX's runtime waits for a heartbeat before it considers a process dead.
    """
    if not _started:
        _started.append(Watchdog(distributed.this_process(), heartbeat_seconds))
        _started[0].start()
