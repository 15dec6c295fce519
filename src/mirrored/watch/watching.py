"""The watch of one worker: it tells the others where it stands, and ends a job that cannot go on."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

from mirrored import config
from mirrored._jax import coordination
from mirrored.watch import judging
from mirrored.watch.leaving import leave, tell_launcher
from mirrored.watch.roll import roll
from mirrored.watch.stacks import all_stacks
from mirrored.watch.standing import Standing

_ROOT: Final = "mirrored/watch"
_INTERVAL_SECONDS: Final = 1.0
# What is wrong now may be right in a moment: two operations are posted one after the other.
_CONFIRMATIONS: Final = 2
_FAREWELL_SECONDS: Final = 10.0


class Watch:
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
        self._board: dict[int, Standing] = {}
        self._changed_at: dict[int, float] = {}
        self._moved_at = self._answered_at = time.monotonic()
        self._told: set[int] = set()
        self._told_alone: set[tuple[int, str, str]] = set()
        self._suspicions: list[str] = []

    def start(self) -> None:
        """Begins to watch."""
        self._posting = threading.Thread(target=self._post, name="mirrored-posting", daemon=True)
        self._posting.start()
        threading.Thread(target=self._judge, name="mirrored-judging", daemon=True).start()
        atexit.register(self._end)

    def _interval(self) -> float:
        return min(_INTERVAL_SECONDS, config.watchdog_seconds() / 4, self._heartbeat_seconds / 4)

    def _end(self) -> None:
        """Tells that this worker's program has ended, before it waits for the others.

        Python must not end while a thread is inside JAX's client: the process would abort.
        """
        self._has_ended = True
        self._wake.set()
        self._posting.join(_FAREWELL_SECONDS)

    def _post(self) -> None:
        while True:
            self._beat += 1
            has_ended = self._has_ended
            mine = roll.standing(beat=self._beat, has_ended=has_ended, name=self._name)
            found: dict[str, str] | None
            try:
                coordination.post(f"{_ROOT}/{self._worker}", json.dumps(mine.to_json()))
                found = coordination.below(_ROOT)
            except Exception:  # the client has shut down, or the coordinator is gone: JAX's runtime acts on that
                found = None
            if has_ended:
                return
            if found is not None:
                self._take({int(key): Standing.from_json(json.loads(text)) for key, text in found.items()})
            self._wake.wait(self._interval())
            self._wake.clear()

    def _take(self, board: dict[int, Standing]) -> None:
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
            board = self._board
            limit = config.watchdog_seconds()
            still = time.monotonic() - self._moved_at
            self._confirm(judging.apart(board) or judging.left_behind(board))
            if not self._suspicions:
                self._tell_of_lonely_calls(board)
            verdict = judging.stuck(board, still, limit)
            if verdict is not None:
                self._leave(f"{verdict}\n  (the limit is {config.WATCHDOG_VARIABLE}={limit:g})")

    def _confirm(self, certain: str | None) -> None:
        """Leaves at the second sight, for the reason that was seen at the first one: it tells of the beginning."""
        self._suspicions = [] if certain is None else [*self._suspicions, certain]
        if len(self._suspicions) >= _CONFIRMATIONS:
            self._leave(self._suspicions[0])

    def _tell_of_lonely_calls(self, board: Mapping[int, Standing]) -> None:
        """Warns of a call that others may have taken for another one; it is seen for certain at the next difference."""
        for key, text in judging.alone(board).items():
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
            silent = judging.silent(since, limit)
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

    def _leave(self, verdict: str) -> None:
        def show() -> None:
            print(f"mirrored: the workers cannot go on: {verdict}", file=sys.stderr)
            print(f"What worker {self._worker} is doing:\n\n{all_stacks()}", file=sys.stderr, flush=True)

        leave("hang", 1, f"cannot go on: {' '.join(verdict.split())[:600]}", show)


_started: list[Watch] = []


def watch_workers(heartbeat_seconds: float) -> None:
    """Starts to watch the workers of the job that this process has joined; once per process.

    Args:
        heartbeat_seconds: After how long without a sign of life JAX's runtime gives a process up.
    """
    if not _started:
        _started.append(Watch(coordination.this_process(), heartbeat_seconds))
        _started[0].start()
