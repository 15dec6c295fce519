"""Ctrl-C during the rendezvous: no thread and no port is left, and the workers can meet afterwards."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from cluster.jobs import processes
from interrupts import TooSlowError, interrupted_at
from mirrored.cluster import rendezvous
from mirrored.cluster.rendezvous import meet
from mirrored.cluster.tasks import Process
from mirrored.errors import RendezvousError
from mirrored.transport import channel, server


def call(process: Process, seconds: float = 30.0) -> None:
    meet(process, "127.0.0.1", seconds, "MultiWorkerMirroredStrategy")


def in_thread(function: Callable[..., Any], *args: Any) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future


def threads_left(seconds: float) -> list[threading.Thread]:
    """Waits until the threads of all rendezvous have ended, and returns those that have not."""
    end = time.monotonic() + seconds
    while True:
        left = [one for one in threading.enumerate() if one.name in ("mirrored-rendezvous", "mirrored-waiting")]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.005)


@pytest.fixture
def alarm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("interrupted", [0, 1])
def test_a_worker_that_is_interrupted_while_it_waits_can_call_again(interrupted: int) -> None:
    made = processes(3)
    other = in_thread(call, made[1 - interrupted])
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(TooSlowError):
        call(made[interrupted])
    last = in_thread(call, made[2])
    call(made[interrupted])
    other.result(30)
    last.result(30)
    assert not threads_left(10.0)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that were not yet in use
@pytest.mark.parametrize("interrupted", [0, 1])
@pytest.mark.long
def test_a_worker_that_is_interrupted_anywhere_leaves_no_thread_and_no_port(interrupted: int) -> None:
    files = {inspect.getfile(module) for module in (rendezvous, server, channel)}
    for event_number in itertools.count(0, 11):
        made = processes(2)
        other = in_thread(call, made[1 - interrupted], 0.3)
        came, _ = interrupted_at(event_number, functools.partial(call, made[interrupted]), files)
        with contextlib.suppress(RendezvousError):  # unless it was told to go on before the interrupt
            other.result(30)
        assert not threads_left(10.0)
        if not came:
            break
    assert event_number > 50
