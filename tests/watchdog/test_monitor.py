"""Interleavings of the watchdog's threads, and workers that leave an epoch of an elastic job."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import jax

from mirrored.watchdog import monitor
from mirrored.watchdog.collective_log import CollectiveLog
from mirrored.watchdog.monitor import Watchdog
from mirrored.watchdog.worker_progress import WorkerProgress


def test_a_worker_that_leaves_its_epoch_has_not_ended(monkeypatch: Any) -> None:
    """Its post "has ended" was taken for the end of the program by a worker that was one operation ahead."""
    store: dict[str, str] = {}

    def get_all_below(prefix: str) -> dict[str, str]:
        return {key.rpartition("/")[2]: text for key, text in store.items() if key.startswith(prefix + "/")}

    put = store.__setitem__
    client = SimpleNamespace(address=lambda: "127.0.0.1:1", put=put, post=put, get_all_below=get_all_below)
    monkeypatch.setattr(monitor, "distributed", client)
    monkeypatch.setattr(monitor, "has_launcher", lambda: True)
    logs = [CollectiveLog(), CollectiveLog()]
    for log, calls in zip(logs, (1, 2), strict=True):
        for _ in range(calls):
            log.arrive("call step", "train.py:10")
            log.depart()
    monkeypatch.setattr(monitor, "collective_log", logs[0])
    leaving = Watchdog(0, heartbeat_seconds=0.4)
    leaving.start()
    time.sleep(0.15)
    leaving.stop()
    assert any(key.endswith("/0") for key in store), "it has posted its progress"
    monkeypatch.setattr(monitor, "collective_log", logs[1])
    verdicts: list[str] = []
    busy = Watchdog(1, heartbeat_seconds=0.4)
    monkeypatch.setattr(busy, "_fail", verdicts.append)
    busy.start()
    time.sleep(0.5)
    busy.stop()
    assert verdicts == []


def test_a_new_worker_while_the_silent_ones_are_looked_for() -> None:
    """The thread that looks for silent workers ended with a KeyError: hang detection was off."""
    watchdog = Watchdog(0, 30.0)

    class Board(dict[int, WorkerProgress]):
        def items(self) -> Any:
            for item in super().items():
                yield item
                watchdog._report_silence()

    watchdog._take(Board({0: WorkerProgress(beat=1), 1: WorkerProgress(beat=1)}))


def test_a_token_can_be_an_array_of_prng_keys() -> None:
    """The thread of the watchdog ended with an AttributeError."""
    log = CollectiveLog()
    log.arrive("call step", "train.py:10")
    log.depart(jax.random.key(0).block_until_ready())
    assert not log.progress(beat=0, has_ended=False, name="host").inside


def test_a_token_that_is_donated_between_two_questions_is_not_being_computed() -> None:
    """The posting thread ended with a RuntimeError: the others took this worker for deadlocked."""

    class Token:
        def is_deleted(self) -> bool:
            return False

        def is_ready(self) -> bool:
            raise RuntimeError("Array has been deleted.")

    log = CollectiveLog()
    log.arrive("call step", "train.py:10")
    log.depart(Token())
    assert not log.progress(beat=1, has_ended=False, name="").inside
