"""The rendezvous of a job's launchers, which all connect to a server on machine 0.

Every launcher, including that of machine 0, has one authenticated connection to the hub there. A start begins when all
launchers have identified themselves. The hub relays a failure of one to all; a broken connection is a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self, TypeGuard

from mirrored import settings
from mirrored._threads import start
from mirrored.errors import RendezvousError
from mirrored.launcher.coordination import Coordination
from mirrored.launcher.job import Job, free_ports
from mirrored.transport import Channel, RefusedError, Server, interface_of, load_secret

# The rendezvous hub of the launchers of several machines: runs in the launcher of machine 0 and relays messages.

_MOST_CHARACTERS: Final = 4096
_MOST_WORKERS: Final = 65536
_KEEP_ALIVE_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True)
class _Hello:
    """The first message of a launcher, with which it identifies itself to the server on machine 0."""

    rank: int
    nodes: int
    name: str
    ports: tuple[int, ...]

    @classmethod
    def read(cls, message: dict[str, Any]) -> Self | None:
        """Parses a launcher's first message; returns None if it is malformed."""
        rank, nodes, name, ports = (message.get(key) for key in ("hello", "nodes", "name", "ports"))
        if not (_is_number(rank, 0) and _is_number(nodes, 1) and isinstance(name, str)):
            return None
        if not isinstance(ports, list) or len(ports) > _MOST_WORKERS:
            return None
        if not all(_is_number(port, 1) and port < 65536 for port in ports):
            return None
        return cls(rank, nodes, name[:_MOST_CHARACTERS], tuple(ports))


def _is_number(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Hub:
    """The server on machine 0 to which the launchers of all machines connect.

    Args:
        host: The coordinator's host.
        port: The coordinator's port.
        nodes: The number of launchers.
        secret: The secret with which they authenticate.

    Raises:
        RendezvousError: The port cannot be opened.
    """

    def __init__(self, host: str, port: int, nodes: int, secret: bytes) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._here: dict[int, tuple[_Hello, Channel]] = {}
        self._done: set[int] = set()
        self._started = False
        try:
            self._server = Server(interface_of(host), port, secret, self._serve, name="mirrored-rendezvous")
        except OSError as error:
            raise RendezvousError(
                "mirrored run on machine 0",
                found=f"port {port} of the coordinator cannot be opened: {error}",
                rule="the launchers must find each other at this port of machine 0",
                remedy="pass another port in --coordinator, or end the program that uses this one",
            ) from error
        self._server.start()

    def close(self) -> None:
        """Stops listening for launchers, and closes all connections."""
        self._server.close()
        with self._lock:
            here, self._here = self._here, {}
        for _, channel in here.values():
            channel.close()

    def _serve(self, channel: Channel) -> None:
        """Answers one launcher until its connection ends, and ignores malformed messages."""
        channel.keep_alive(_KEEP_ALIVE_SECONDS)
        hello: _Hello | None = None
        for message in channel.receive():
            with self._lock:
                if hello is None:
                    hello = _Hello.read(message)
                    if hello is not None:
                        self._welcome(hello, channel)
                elif self._is_here(hello, channel):
                    self._take(message, hello)
        with self._lock:
            if hello is not None and self._is_here(hello, channel):
                del self._here[hello.rank]
                if self._started and hello.rank not in self._done:
                    self._stop(f"the launcher of machine {hello.rank} ({hello.name}) has ended or is unreachable")

    def _is_here(self, hello: _Hello, channel: Channel) -> bool:
        return hello.rank in self._here and self._here[hello.rank][1] is channel

    def _take(self, message: dict[str, Any], hello: _Hello) -> None:
        reason = message.get("stop")
        if isinstance(reason, str):
            del self._here[hello.rank]
            self._stop(reason[:_MOST_CHARACTERS])
        elif "done" in message:
            self._done.add(hello.rank)
            if len(self._done) == self._nodes:
                self._broadcast({"all_done": True})

    def _welcome(self, hello: _Hello, channel: Channel) -> None:
        wrong = self._mismatch(hello)
        if wrong:
            channel.send({"refused": wrong})
            return
        self._here[hello.rank] = (hello, channel)
        missing = [one for one in range(self._nodes) if one not in self._here]
        if missing:
            self._broadcast({"waiting": missing})
            return
        self._started, self._done = True, set()
        everyone = [self._here[one] for one in range(self._nodes)]
        self._broadcast({"start": [{"host": channel.peer, "ports": hello.ports} for hello, channel in everyone]})

    def _mismatch(self, hello: _Hello) -> str | None:
        if hello.nodes != self._nodes:
            return f"machine {hello.rank} says --nodes {hello.nodes}, machine 0 says {self._nodes}"
        other = next((one for one, _ in self._here.values() if len(one.ports) != len(hello.ports)), None)
        if other is not None:
            workers = f"--workers {len(hello.ports)}, machine {other.rank} says {len(other.ports)}"
            return f"machine {hello.rank} says {workers}"
        if hello.rank >= self._nodes or hello.rank in self._here:
            return f"machine {hello.rank} ({hello.name}) has joined already, or is not one of {self._nodes} machines"
        return None

    def _stop(self, reason: str) -> None:
        """Makes all launchers end their workers; every launcher must identify itself again before the job restarts."""
        self._started = False
        here, self._here = self._here, {}
        for _, channel in here.values():
            channel.send({"stop": reason})

    def _broadcast(self, message: dict[str, Any]) -> None:
        for _, channel in list(self._here.values()):
            channel.send(message)


_PAUSE_SECONDS: Final = 0.05
_CONNECT_SECONDS: Final = 5.0
# Another program may hold the port for a moment; a server that refuses for longer has another secret.
_MOST_REFUSALS: Final = 40


class LauncherRendezvous(Coordination):
    """The implementation of `Coordination` for several machines: a connection to the server on machine 0.

    Args:
        job: The job; its `coordinator` is the address of the rendezvous.

    Raises:
        ArgumentError: There is no secret with which the launchers can authenticate each other.
        RendezvousError: On machine 0: the port is taken.
    """

    def __init__(self, job: Job) -> None:
        assert job.coordinator is not None
        self._job = job
        host, _, port = job.coordinator.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._secret = load_secret()
        self._hub = Hub(self._host, self._port, job.nodes, self._secret) if job.node_rank == 0 else None
        self._channel: Channel | None = None
        self._refusals = 0
        self._news: queue.Queue[dict[str, Any]] = queue.Queue()

    @property
    def secret(self) -> str:
        """The secret with which launchers and workers authenticate each other."""
        return os.fsdecode(self._secret)

    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Waits until the launchers of all machines are ready, and returns the addresses of all workers.

        Raises:
            RendezvousError: Some launchers, which it names, did not join in time; or machine 0 has another secret.
        """
        self._hang_up()  # each start has connections of its own
        end = time.monotonic() + self._job.meeting_seconds
        with free_ports(self._job.workers) as ports:
            hello: dict[str, Any] = {
                "hello": self._job.node_rank,
                "nodes": self._job.nodes,
                "workers": self._job.workers,
            }
            hello |= {"ports": ports, "name": socket.gethostname(), "restart": restart}
            waiting: list[int] = []
            while time.monotonic() < end:
                if is_interrupted():
                    return None
                if self._channel is None and not self._connect(hello):
                    time.sleep(_PAUSE_SECONDS)
                    continue
                message = self._next()
                if "start" in message:
                    return self._addresses(message["start"])
                if "refused" in message:
                    raise self._error(str(message["refused"]), "all launchers are started with the same options")
                waiting = message.get("waiting", waiting)
        raise self._missing_error(waiting)

    def news(self) -> str | None:
        """Returns why another machine's workers were ended; None if no other machine has ended its workers."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._news.get_nowait()
                if "stop" in message:
                    return str(message["stop"])
        return None

    def tell(self, reason: str) -> None:
        """Notifies all other launchers that a worker has failed, so that they end their workers."""
        self._send({"stop": f"machine {self._job.node_rank} ({socket.gethostname()}): {reason}"})
        self._hang_up()

    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Waits until all other machines' workers have ended; returns the reason if any failed, else None."""
        self._send({"done": self._job.node_rank})
        while not is_interrupted():
            message = self._next()
            if "all_done" in message:
                return None
            if "stop" in message:
                self._hang_up()
                return str(message["stop"])
        return "interrupted"

    def close(self) -> None:
        """Closes the connection to the server; on machine 0 also closes the server."""
        self._hang_up()
        if self._hub is not None:
            self._hub.close()

    def _next(self) -> dict[str, Any]:
        try:
            return self._news.get(timeout=_PAUSE_SECONDS)
        except queue.Empty:
            return {}

    def _connect(self, hello: dict[str, Any]) -> bool:
        try:
            channel = Channel.connect((self._host, self._port), self._secret, _CONNECT_SECONDS)
        except RefusedError as error:  # possibly another program, which holds the port for a moment
            self._refusals += 1
            if self._refusals >= _MOST_REFUSALS:
                raise self._unauthenticated_error(error) from None
            return False
        except OSError:
            self._refusals = 0
            return False
        self._refusals = 0
        channel.keep_alive(_KEEP_ALIVE_SECONDS)
        self._channel, self._news = channel, queue.Queue()
        start(threading.Thread(target=self._read, args=(channel, self._news), daemon=True))
        self._send(hello)
        return True

    def _read(self, channel: Channel, news: queue.Queue[dict[str, Any]]) -> None:
        for message in channel.receive():
            news.put(message)
        channel.close()  # this thread may hold the last reference to it
        news.put({"stop": f"the launcher of machine 0 ({self._job.coordinator}) has ended or is unreachable"})
        if self._channel is channel:
            self._channel = None

    def _send(self, message: dict[str, Any]) -> None:
        channel = self._channel
        if channel is not None:
            channel.send(message)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _addresses(self, machines: list[dict[str, Any]]) -> list[str]:
        """Returns the addresses of all workers: each machine's host as seen by machine 0, and each worker's port."""
        hosts = [self._host if rank == 0 else str(machine["host"]) for rank, machine in enumerate(machines)]
        named = [f"[{host}]" if ":" in host else host for host in hosts]
        return [f"{host}:{port}" for host, machine in zip(named, machines, strict=True) for port in machine["ports"]]

    def _missing_error(self, waiting: list[int]) -> RendezvousError:
        if self._channel is None:
            who = f"no launcher answers at {self._job.coordinator}"
        else:
            who = f"machines {', '.join(map(str, waiting))} have not joined"
        return self._error(
            f"{who} after {self._job.meeting_seconds:g} s",
            f"all {self._job.nodes} launchers must join at the coordinator before the workers start",
        )

    def _error(self, found: str, rule: str) -> RendezvousError:
        return RendezvousError(
            f"mirrored run on machine {self._job.node_rank}",
            found=found,
            rule=rule,
            remedy="start `mirrored run` on every machine with the same --nodes, --workers and --coordinator and its "
            "own --node-rank; check that the other machines can reach the port of machine 0",
        )

    def _unauthenticated_error(self, refusal: RefusedError) -> RendezvousError:
        return RendezvousError(
            f"mirrored run on machine {self._job.node_rank}",
            found=f"{refusal} ({self._job.coordinator})",
            rule="all launchers of a job must have the same secret",
            remedy=f"set {settings.SECRET.name} on every machine to the output of one `openssl rand -hex 32`, or "
            f"{settings.SECRET_FILE.name} to a file with it; the default is a generated file in the home folder, which "
            "the machines may not share",
        )
