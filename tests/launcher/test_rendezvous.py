"""The launchers of several machines: here threads of one process, over real connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrored.errors import RendezvousError
from mirrored.launcher.job import Job, free_ports
from mirrored.launcher.rendezvous import LauncherRendezvous
from mirrored.transport import Channel
from transport.attacks import COUNT, MALFORMED, attack, idle

SECRET = "by which the machines know each other"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.delenv("MIRRORED_SECRET_FILE", raising=False)
    monkeypatch.setenv("MIRRORED_SECRET", SECRET)


def never() -> bool:
    return False


def job(rank: int, port: int, **options: object) -> Job:
    chosen = {"nodes": 3, "workers": 2, "meeting_seconds": 20.0, **options}
    return Job(program="train.py", node_rank=rank, coordinator=f"localhost:{port}", **chosen)  # type: ignore[arg-type]


@contextlib.contextmanager
def machines(count: int = 3, **options: object) -> Iterator[list[LauncherRendezvous]]:
    with free_ports(1) as (port,):
        pass
    made = [LauncherRendezvous(job(rank, port, nodes=count, **options)) for rank in range(count)]
    try:
        yield made
    finally:
        for one in reversed(made):
            one.close()


def meet(made: list[LauncherRendezvous], restart: int = 0) -> list[list[str] | None]:
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(lambda one: one.meet(restart, never), made))


def wait_for_news(one: LauncherRendezvous) -> str:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if (news := one.news()) is not None:
            return news
        time.sleep(0.01)
    raise AssertionError("no news")


def test_all_learn_the_same_addresses_and_end_together():
    with machines() as made:
        first, *others = meet(made)
        assert first is not None
        assert others == [first, first]
        assert [address.rpartition(":")[0] for address in first] == ["localhost"] * 2 + ["127.0.0.1"] * 4
        assert len(set(first)) == 6
        ended: list[str | None] = []
        threads = [
            threading.Thread(target=lambda one=one: ended.append(one.wait_for_the_others(never))) for one in made
        ]
        for thread in threads[:2]:
            thread.start()
        time.sleep(0.2)
        assert not ended, "nobody leaves before all are done"
        threads[2].start()
        for thread in threads:
            thread.join(5)
        assert ended == [None, None, None]


def test_a_failure_is_passed_on_and_all_meet_again():
    with machines() as made:
        first = meet(made)[0]
        made[1].tell("worker 2 was killed by SIGKILL")
        for other in (made[0], made[2]):
            assert wait_for_news(other).endswith("worker 2 was killed by SIGKILL")
            assert other.news() is None
            other.tell("its workers were ended")
        again = meet(made, 1)
        assert again[0] == again[1] == again[2] != first
        assert all(one.news() is None for one in made)


def test_a_machine_that_goes_is_named_and_may_come_back():
    with machines(2) as made:
        meet(made)
        made[1].close()
        assert wait_for_news(made[0]).startswith("the launcher of machine 1 (")
        assert meet(made, 1)[0] is not None


def test_the_first_machine_goes():
    with machines(2) as made:
        meet(made)
        assert made[0]._hub is not None
        made[0].close()
        assert "the launcher of machine 0 (" in wait_for_news(made[1])


def test_a_machine_that_does_not_come_is_named():
    with machines(3, meeting_seconds=0.5) as made, pytest.raises(RendezvousError, match="machines 2 have not joined"):
        meet(made[:2])


def test_nobody_answers():
    with free_ports(1) as (port,):
        pass
    with pytest.raises(RendezvousError, match=f"no launcher answers at localhost:{port} after 0.3 s"):
        LauncherRendezvous(job(1, port, meeting_seconds=0.3)).meet(0, never)


def test_numbers_that_differ_are_refused():
    with machines(2) as made:
        wrong = LauncherRendezvous(job(1, made[0]._port, nodes=3))
        with pytest.raises(RendezvousError, match="machine 1 says --nodes 3, machine 0 says 2"):
            wrong.meet(0, never)
        wrong.close()


def test_numbers_of_workers_that_differ_are_refused():
    """Two workers would have one index, or one would have none."""
    with machines(2) as made:
        made[0]._connect({"hello": 0, "nodes": 2, "ports": [1, 2], "name": "first"})
        assert "waiting" in made[0]._news.get(timeout=5)
        wrong = LauncherRendezvous(job(1, made[0]._port, nodes=2, workers=3))
        with pytest.raises(RendezvousError, match="machine 1 says --workers 3, machine 0 says 2"):
            wrong.meet(0, never)
        wrong.close()


def test_a_port_that_is_taken():
    with machines(1, workers=1) as made, pytest.raises(RendezvousError, match=f"port {made[0]._port} of the coordin"):
        LauncherRendezvous(job(0, made[0]._port))


def test_an_interrupt_ends_the_waiting():
    with machines(2) as made:
        assert made[0].meet(0, lambda: True) is None


def test_strangers_and_malformed_messages_have_no_effect():
    with machines(2) as made:
        port = made[0]._port
        assert attack(port) >= COUNT
        with idle(port, 100):
            meet(made)
            attack(port)
            known = Channel.connect(("127.0.0.1", port), SECRET.encode(), 20)  # no launcher, but it has the secret
            for number in range(COUNT):
                known.send(MALFORMED[number % len(MALFORMED)])
            known.close()
        assert made[0].news() is None
        assert made[1].news() is None
        made[1].tell("worker 3 has failed")
        assert wait_for_news(made[0]).endswith("worker 3 has failed")


@pytest.mark.long
def test_a_launcher_with_another_secret_is_not_one_of_the_job(monkeypatch):
    with machines(2) as made:
        monkeypatch.setenv("MIRRORED_SECRET", SECRET + "!")
        stranger = LauncherRendezvous(job(1, made[0]._port, nodes=2))
        with pytest.raises(RendezvousError, match="the secrets differ.*\n.*have the same secret\n.*MIRRORED_SECRET"):
            stranger.meet(0, never)
        stranger.close()
        assert meet(made)[0] is not None


def test_a_port_on_the_loopback_interface_is_not_open_to_the_network():
    with machines(2) as made:
        assert made[0]._hub is not None
        assert made[0]._hub._server._socket.getsockname()[0] == "127.0.0.1"


def test_two_launchers_with_one_rank():
    with machines(2) as made:
        second = LauncherRendezvous(job(1, made[0]._port, nodes=2))
        made[1]._connect({"hello": 1, "nodes": 2, "ports": [1, 2], "name": "first"})
        time.sleep(0.1)
        with pytest.raises(RendezvousError, match="machine 1 .* has joined already"):
            second.meet(0, never)
        second.close()
