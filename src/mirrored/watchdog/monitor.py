"""The watch of one worker: it tells the others where it stands, and ends a job that cannot go on."""

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
from mirrored._jax import coordination
from mirrored.watchdog import hang_detection
from mirrored.watchdog.collective_log import collective_log
from mirrored.watchdog.delayed_abort import delay_aborts, is_aborting
from mirrored.watchdog.fail_fast_exit import fail_fast, has_launcher, report_exit_by, tell_launcher
from mirrored.watchdog.forked_children import in_forked_children
from mirrored.watchdog.lost_peer import FOLLOWS, lost_worker
from mirrored.watchdog.peer_connection import Address, PeerConnection
from mirrored.watchdog.thread_stacks import all_stacks
from mirrored.watchdog.worker_progress import WorkerProgress

_ROOT: Final = "mirrored/watch"
_LIFELINE: Final = "mirrored/lifeline"
_LIFELINE_SECONDS: Final = 60.0
_INTERVAL_SECONDS: Final = 1.0
# What is wrong now may be right in a moment: two operations are posted one after the other.
_CONFIRMATIONS: Final = 2
_FAREWELL_SECONDS: Final = 10.0
_OWN_WORDS_SECONDS: Final = 3.0
_JAX_SECONDS: Final = 1.0
_ENDING_SECONDS: Final = 0.2


class Watchdog:
    """Two threads: one posts and reads where the workers stand, by way of the coordinator; one judges.

    They are two because a coordinator that is stopped does not answer, and that must be told as well.

    Args:
        worker: Which one this is.
        heartbeat_seconds: After how long without a sign of life JAX's runtime gives a process up.
    """

    def __init__(self, worker: int, heartbeat_seconds: float) -> None:
        self._worker = worker
        self._heartbeat_seconds = heartbeat_seconds
        self._name = f"{socket.gethostname()}, process {os.getpid()}"
        self._beat = 0
        self._has_ended = False
        self._wake = threading.Event()
        self._board: dict[int, WorkerProgress] = {}
        self._changed_at: dict[int, float] = {}
        self._moved_at = self._answered_at = time.monotonic()
        self._told: set[int] = set()
        self._told_alone: set[tuple[int, str, str]] = set()
        self._suspicions: list[str] = []
        self._lifeline: PeerConnection | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._posting = threading.Thread(target=self._post, name="mirrored-posting", daemon=True)
        self._posting.start()
        threading.Thread(target=self._judge, name="mirrored-judging", daemon=True).start()
        self._start_lifeline()
        report_exit_by(self._say_farewell, self._suspect)
        atexit.register(self._end)
        in_forked_children(self._reset)

    def _reset(self) -> None:
        """In a forked child, which is no worker: its end is not that of one."""
        atexit.unregister(self._end)
        self._has_ended, self._lifeline = True, None

    def _start_lifeline(self) -> None:
        """Connects the workers, unless a launcher looks after them."""
        line = PeerConnection(self._worker, self._heartbeat_seconds, self._lose)
        address: Address | None = None
        host = coordination.address().rpartition(":")[0].strip("[]")
        if self._worker == 0:
            with contextlib.suppress(OSError):
                address = None if has_launcher() else line.listen(host)
            coordination.put(_LIFELINE, json.dumps(None if address is None else dataclasses.astuple(address)))
        elif not has_launcher():
            told = json.loads(coordination.get(_LIFELINE, _LIFELINE_SECONDS))
            if told is not None:
                address = Address(*told)
                line.connect(host, address)
        if address is not None:
            self._lifeline = line
            delay_aborts()

    def _interval(self) -> float:
        return min(_INTERVAL_SECONDS, config.watchdog_seconds() / 4, self._heartbeat_seconds / 4)

    def _end(self) -> None:
        """Tells that this worker's program has ended, before it waits for the others.

        Python must not end while a thread is inside JAX's client: the process would abort.
        """
        self._has_ended = True
        if self._lifeline is not None:
            self._lifeline.say("bye")
        self._wake.set()
        self._posting.join(_FAREWELL_SECONDS)

    def _post(self) -> None:
        while True:
            self._beat += 1
            has_ended = self._has_ended
            mine = collective_log.standing(beat=self._beat, has_ended=has_ended, name=self._name)
            found: dict[str, str] | None
            try:
                coordination.post(f"{_ROOT}/{self._worker}", json.dumps(mine.to_json()))
                found = coordination.below(_ROOT)
            except Exception:  # the client has shut down, or the coordinator is gone: JAX's runtime acts on that
                found = None
            if has_ended:
                return
            if found is not None:
                self._take({int(key): WorkerProgress.from_json(json.loads(text)) for key, text in found.items()})
            self._wake.wait(min(self._interval(), 0.1 * self._beat))  # at first all want to know of each other
            self._wake.clear()

    def _take(self, board: dict[int, WorkerProgress]) -> None:
        now = self._answered_at = time.monotonic()
        for worker, standing in board.items():
            before = self._board.get(worker)
            if before is None or before.beat != standing.beat:
                self._changed_at[worker] = now
                self._told.discard(worker)
            if before is None or (before.count, before.inside, before.has_ended) != (
                standing.count, standing.inside, standing.has_ended
            ):  # fmt: skip
                self._moved_at = now
        self._board = board

    def _judge(self) -> None:
        while not self._has_ended:
            time.sleep(self._interval())
            self._tell_of_silence()
            self._leave_before_jax()
            board = self._board
            limit = config.watchdog_seconds()
            still = time.monotonic() - self._moved_at
            self._confirm(hang_detection.apart(board) or hang_detection.left_behind(board))
            if not self._suspicions:
                self._tell_of_lonely_calls(board)
            verdict = hang_detection.stuck(board, still, limit)
            if verdict is not None:
                self._leave(f"{verdict}\n  (the limit is {settings.WATCHDOG_SECONDS.name}={limit:g})")

    def _confirm(self, certain: str | None) -> None:
        """Leaves at the second sight, for the reason that was seen at the first one: it tells of the beginning."""
        self._suspicions = [] if certain is None else [*self._suspicions, certain]
        if len(self._suspicions) >= _CONFIRMATIONS:
            self._leave(self._suspicions[0])

    def _tell_of_lonely_calls(self, board: Mapping[int, WorkerProgress]) -> None:
        """Warns of a call that others may have taken for another one; it is seen for certain at the next difference."""
        for key, text in hang_detection.alone(board).items():
            if key[0] == self._worker and key not in self._told_alone:
                print(
                    f"mirrored: {text}. If no other branch of the program makes that call for it there, the workers "
                    "are one call apart from here on: make calls on all workers or on none",
                    file=sys.stderr,
                    flush=True,
                )
                self._told_alone.add(key)

    def _tell_of_silence(self) -> None:
        """Says who gives no sign of life, shortly before JAX's runtime ends the others for it."""
        limit, now = 0.7 * self._heartbeat_seconds, time.monotonic()
        if now - self._answered_at > limit:
            silent = [0]
        else:
            since = {worker: now - at for worker, at in self._changed_at.items() if not self._board[worker].has_ended}
            silent = hang_detection.silent(since, limit)
        for worker in silent:
            if worker in self._told or worker == self._worker:
                continue
            self._told.add(worker)
            name = self._board[worker].name if worker in self._board else "the coordinator"
            text = (
                f"worker {worker} ({name}) has given no sign of life for {limit:.0f} s: it is stopped, its machine is "
                "gone, or something there holds Python up"
            )
            print(f"mirrored: {text}", file=sys.stderr, flush=True)
            tell_launcher(text)

    def _say_farewell(self, kind: str, text: str) -> None:
        """Tells the others why this worker goes, if they do not find it out for themselves."""
        if self._lifeline is not None and kind not in ("hang", "lost-peer"):
            self._lifeline.say("failing", text)
        elif self._lifeline is not None:
            self._lifeline.say("failing", f"{FOLLOWS} {text}")

    def _lose(self, worker: int, words: str) -> None:
        """Ends this worker since another one has gone."""
        if words.startswith(FOLLOWS):
            time.sleep(_OWN_WORDS_SECONDS)  # this worker finds out the same in a moment, and tells it better
        age = self._age(worker)
        self._let_others_speak(worker)
        error = lost_worker(worker, self._board.get(worker), words.removeprefix(FOLLOWS).strip(), age)
        text = "".join(traceback.format_exception_only(error)).rstrip()
        fail_fast("lost-peer", 1, text, lambda: print(text, file=sys.stderr, flush=True))

    def _let_others_speak(self, lost: int) -> None:
        """Waits for JAX's runtime to print its message, so that ours is the last; worker 0 for the others to end.

        The end of worker 0 is what has JAX's runtime abort the others.
        """
        end = time.monotonic() + (_JAX_SECONDS if lost == 0 else _ENDING_SECONDS if self._worker == 0 else 0.0)
        while time.monotonic() < end and not is_aborting():
            time.sleep(0.01)

    def _leave_before_jax(self) -> None:
        """Says who is lost, where JAX's runtime has given a worker up whose connection still stands: a stopped one."""
        text = None if self._lifeline is None else self._suspect()
        if text is not None and is_aborting():
            fail_fast("lost-peer", 1, text, lambda: print(text, file=sys.stderr, flush=True))

    def _age(self, worker: int) -> float:
        return time.monotonic() - self._changed_at.get(worker, self._answered_at)

    def _suspect(self) -> str | None:
        """The error for the worker that has been silent longest, if it is longer than a living one would be."""
        limit = 3 * self._interval()
        if time.monotonic() - self._answered_at > limit:
            worker = 0
        else:
            ages = {other: self._age(other) for other, one in self._board.items() if not one.has_ended}
            worker = max(ages, key=ages.__getitem__, default=self._worker)
        if worker == self._worker or self._age(worker) <= limit:
            return None
        error = lost_worker(worker, self._board.get(worker), "", self._age(worker))
        return "".join(traceback.format_exception_only(error)).rstrip()

    def _leave(self, verdict: str) -> None:
        def show() -> None:
            print(f"mirrored: the workers cannot go on: {verdict}", file=sys.stderr)
            print(f"What worker {self._worker} is doing:\n\n{all_stacks()}", file=sys.stderr, flush=True)

        fail_fast("hang", 1, f"cannot go on: {' '.join(verdict.split())[:600]}", show)


_started: list[Watchdog] = []


def start_watchdog(heartbeat_seconds: float) -> None:
    """Starts to watch the workers of the job that this process has joined; once per process.

    Args:
        heartbeat_seconds: After how long without a sign of life JAX's runtime gives a process up.
    """
    if not _started:
        _started.append(Watchdog(coordination.this_process(), heartbeat_seconds))
        _started[0].start()
