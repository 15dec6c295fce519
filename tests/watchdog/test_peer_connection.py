from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time

import pytest

from mirrored.transport import Channel
from mirrored.watchdog.peer_connection import Address, PeerConnection
from transport.attacks import COUNT, MALFORMED, attack, idle


class Worker:
    """A peer connection of this process that records which workers it reports as lost."""

    def __init__(self, worker: int) -> None:
        self.address = Address(0, "")
        self.heard: queue.Queue[tuple[int, str]] = queue.Queue()
        self.line = PeerConnection(worker, 30.0, lambda other, text: self.heard.put((other, text)))

    def hears(self) -> tuple[int, str]:
        return self.heard.get(timeout=10)

    def goes(self) -> None:
        """Closes the connections as the kernel does when the process ends: its own threads report nothing more."""
        with self.line._lock:
            for connection in self.line._channels.values():
                connection._connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def workers() -> list[Worker]:
    made = [Worker(worker) for worker in range(3)]
    address = made[0].address = made[0].line.listen("127.0.0.1")
    for one in made[1:]:
        one.line.connect("127.0.0.1", address)
    for one, count in zip(made, (2, 1, 1), strict=True):
        wait_for_channels(one, count)
    return made


def wait_for_channels(worker: Worker, count: int) -> None:
    for _ in range(1000):
        if len(worker.line._channels) == count:
            return
        time.sleep(0.01)
    pytest.fail(f"{len(worker.line._channels)} of {count} connections")


def test_the_end_of_one_is_heard_by_all_others(workers):
    workers[2].goes()
    assert workers[0].hears() == (2, "")
    assert workers[1].hears() == (2, "")


def test_the_end_of_the_first_is_heard_by_each(workers):
    workers[0].goes()
    assert workers[1].hears() == (0, "")
    assert workers[2].hears() == (0, "")


def test_last_words_are_passed_on_and_come_before_the_end(workers):
    workers[1].line.announce_end("failing", "ended by ValueError:\nno data")
    workers[1].goes()
    assert workers[0].hears() == (1, "ended by ValueError: no data")
    assert workers[2].hears() == (1, "ended by ValueError: no data")


def test_a_program_that_has_ended_may_go(workers):
    workers[1].line.announce_end("bye")
    workers[1].goes()
    workers[2].goes()
    assert workers[0].hears() == (2, ""), "and nothing of worker 1"
    assert workers[0].heard.empty()


def test_strangers_and_malformed_messages_have_no_effect(workers):
    address = workers[0].address
    assert attack(address.port) >= COUNT
    with idle(address.port, 100):
        known = Channel.connect(("127.0.0.1", address.port), address.secret, 20)
        known.send({"here": 1})
        for number in range(COUNT):
            known.send(MALFORMED[number % len(MALFORMED)])
        known.send({"kind": "bye"})
        known.close()
    assert workers[0].heard.empty()
    workers[2].goes()
    assert workers[0].hears() == (2, "")


def test_a_secret_that_the_user_has_configured_counts_as_well(monkeypatch, workers):
    known = workers[0].address.secret
    monkeypatch.setenv("MIRRORED_SECRET", "of this user, for this job")
    assert workers[0].address.secret == known + b"of this user, for this job"


def test_it_listens_at_the_interface_of_the_coordinator(workers):
    assert workers[0].line._server._socket.getsockname()[0] == "127.0.0.1"


def test_where_nobody_listens_there_is_no_lifeline():
    alone = Worker(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        alone.line.connect("127.0.0.1", Address(free.getsockname()[1], "token"))
    alone.line.announce_end("bye")
    assert alone.heard.empty()


@pytest.mark.multiprocess
@pytest.mark.long
def test_a_forked_child_that_outlives_its_worker_does_not_keep_the_connection_open():
    program = """
import os, sys, time, warnings
warnings.simplefilter("ignore")  # of forks beside threads
from mirrored.watchdog.peer_connection import Address, PeerConnection
line = PeerConnection(1, 30.0, print)
line.connect("127.0.0.1", Address(int(sys.argv[1]), sys.argv[2]))
while not line._channels: time.sleep(0.01)
if os.fork() == 0:
    time.sleep(20)
    os._exit(0)
time.sleep(0.5)  # until it has begun
os._exit(0)
"""
    hub = Worker(0)
    address = hub.line.listen("127.0.0.1")
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(address.port), address.token]
    leaf = subprocess.Popen(command, env=path, start_new_session=True)
    try:
        assert leaf.wait(30) == 0
        assert hub.hears() == (1, "")
        os.killpg(leaf.pid, 0)  # the child is still there
    finally:
        os.killpg(leaf.pid, signal.SIGKILL)
