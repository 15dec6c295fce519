"""The rendezvous of the workers: here threads of one process, over real connections."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cluster.jobs import processes
from mirrored.cluster import rendezvous
from mirrored.cluster.rendezvous import meet
from mirrored.cluster.tasks import Process
from mirrored.errors import RendezvousError
from mirrored.transport import Server, given_secret
from transport.attacks import COUNT, attack, idle


def started(some: list[Process], seconds: float = 20) -> list[Future[None]]:
    pool = ThreadPoolExecutor(len(some))
    futures = [pool.submit(meet, one, "127.0.0.1", seconds, "MultiWorkerMirroredStrategy") for one in some]
    pool.shutdown(wait=False)
    return futures


def test_all_come_in_any_order_and_the_port_is_free_again():
    made = processes(4)
    late = started(made[1:])
    time.sleep(0.2)
    for future in [*started(made[:1]), *late]:
        future.result(20)
    with socket.create_server(("127.0.0.1", int(made[0].coordinator.rpartition(":")[2]))):
        pass


def test_who_is_missing_is_named_on_all_that_have_come():
    made = processes(4)
    for future in started(made[:3], 1.0):
        with pytest.raises(
            RendezvousError, match=rf"worker 3 \({made[3].addresses[3]}\) did not join at .* within 1 s"
        ):
            future.result(20)


def test_the_first_worker_is_missing():
    made = processes(2)
    (future,) = started(made[1:], 0.5)
    with pytest.raises(RendezvousError, match=f"no process answers at {made[0].coordinator} after 0.[345] s"):
        future.result(20)


def test_a_coordinators_port_that_is_taken_has_a_number():
    made = processes(2)
    port = int(made[0].coordinator.rpartition(":")[2])
    with (
        socket.create_server(("", port)),
        pytest.raises(RendezvousError, match=f"port {port} of this machine is taken"),
    ):
        meet(made[0], "127.0.0.1", 1.0, "MultiWorkerMirroredStrategy")


def test_who_waits_says_so(monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "_TELL_SECONDS", 0.2)
    made = processes(3)
    futures = started(made[:2])
    time.sleep(0.7)
    futures += started(made[2:])
    for future in futures:
        future.result(20)
    errors = capfd.readouterr().err
    for worker in (0, 1):
        assert f"mirrored: worker {worker} has waited 0 s of 20 for worker 2 ({made[0].addresses[2]}) to join" in errors


def test_a_first_worker_that_is_stopped_after_it_has_answered_is_told_and_named(monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "_TELL_SECONDS", 0.2)
    monkeypatch.setattr(rendezvous, "_CONNECT_SECONDS", 0.5)
    made = processes(2)
    description = json.dumps([2, *made[0].addresses]).encode()
    secret = hashlib.sha256(description).digest() + given_secret()
    over = threading.Event()
    server = Server("127.0.0.1", int(made[0].coordinator.rpartition(":")[2]), secret, lambda _: over.wait(30), name="x")
    server.start()
    try:
        (future,) = started(made[1:], 1.0)
        with pytest.raises(RendezvousError, match=rf"worker 0 \({made[0].coordinator}\) did not join at"):
            future.result(20)
    finally:
        over.set()
        server.close()
    told = capfd.readouterr().err
    assert f"mirrored: worker 1 has waited 0 s of 1 for worker 0 ({made[0].coordinator}) to join" in told


@pytest.mark.long
def test_a_worker_that_goes_and_comes_again():
    made = processes(3)
    first = started(made[:1])
    (gone,) = started(made[1:2], 0.5)
    with pytest.raises(RendezvousError):
        gone.result(20)
    for future in first + started(made[1:]):
        future.result(20)


@pytest.mark.long
def test_two_processes_that_are_the_same_worker():
    made = processes(3)
    futures = started([made[0], made[1]], 2.0)
    time.sleep(0.3)
    (twice,) = started(made[1:2])
    with pytest.raises(RendezvousError, match="another process has joined as worker 1 already"):
        twice.result(20)
    for future in futures:
        with pytest.raises(RendezvousError):
            future.result(20)


@pytest.mark.parametrize("what", ["cluster", "secret"])
@pytest.mark.long
def test_workers_of_other_jobs_do_not_meet(monkeypatch, what):
    made = processes(2)
    (host,) = started(made[:1], 3.0)
    time.sleep(0.2)
    other = made[1]
    if what == "secret":
        monkeypatch.setenv("MIRRORED_SECRET", "of another job or user")
    else:
        other = Process(other.coordinator, 2, 1, (other.addresses[0], "127.0.0.1:1"))
    (guest,) = started([other])
    with pytest.raises(RendezvousError, match="is not worker 0 of this job: the secrets differ"):
        guest.result(20)
    with pytest.raises(RendezvousError, match="worker 1 .* did not join"):
        host.result(20)


def test_strangers_and_malformed_messages_have_no_effect():
    made = processes(2)
    port = int(made[0].coordinator.rpartition(":")[2])
    (host,) = started(made[:1], 60)
    assert attack(port) >= COUNT
    with idle(port, 100):
        (guest,) = started(made[1:])
        guest.result(20)
        host.result(20)


def test_an_index_that_no_worker_has_does_not_count():
    made = processes(2)
    (host,) = started(made[:1])
    (wrong,) = started([Process(made[0].coordinator, 2, 2, made[0].addresses)], 0.5)
    with pytest.raises(RendezvousError):
        wrong.result(20)
    (guest,) = started(made[1:])
    guest.result(20)
    host.result(20)
