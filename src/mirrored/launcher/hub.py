"""The rendezvous hub of the launchers of several machines: runs in the launcher of machine 0 and relays messages."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Final, Self, TypeGuard

from mirrored.errors import RendezvousError
from mirrored.transport import Channel, Server, interface_of

_MOST_CHARACTERS: Final = 4096
_MOST_WORKERS: Final = 65536
_KEEP_ALIVE_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True)
class _Hello:
    """The validated first message of a launcher, with which it identifies itself."""

    rank: int
    nodes: int
    name: str
    ports: tuple[int, ...]

    @classmethod
    def read(cls, message: dict[str, Any]) -> Self | None:
        """Parses a message; returns None if it is malformed."""
        rank, nodes, name, ports = (message.get(key) for key in ("hello", "nodes", "name", "ports"))
        if not (_is_number(rank, 0) and _is_number(nodes, 1) and isinstance(name, str)):
            return None
        if not isinstance(ports, list) or len(ports) > _MOST_WORKERS:
            return None
        if not all(_is_number(port, 1) and port < 65536 for port in ports):
            return None
        return cls(rank, nodes, name[:_MOST_CHARACTERS], tuple(ports))


def _is_number(value: Any, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Hub:
    """Accepts the launchers of a job, at the interface that the coordinator's address names.

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
                rule="the launchers rendezvous at this port of machine 0",
                remedy="give --coordinator another port, or end the program that uses this one",
            ) from error

    def close(self) -> None:
        """Stops listening and closes all connections."""
        self._server.close()
        with self._lock:
            here, self._here = self._here, {}
        for _, channel in here.values():
            channel.close()

    def _serve(self, channel: Channel) -> None:
        """Serves one launcher until its connection ends. Malformed messages are ignored."""
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
        if hello.rank >= self._nodes or hello.rank in self._here:
            return f"machine {hello.rank} ({hello.name}) has joined already, or is not one of {self._nodes} machines"
        return None

    def _stop(self, reason: str) -> None:
        """Ends this start on all machines; for the next one all launchers identify themselves again."""
        self._started = False
        here, self._here = self._here, {}
        for _, channel in here.values():
            channel.send({"stop": reason})

    def _broadcast(self, message: dict[str, Any]) -> None:
        for _, channel in list(self._here.values()):
            channel.send(message)
