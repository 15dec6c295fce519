"""A connection from every worker to the first one, by whose end the others know at once that a process has ended.

JAX's runtime knows it after the heartbeat's timeout (of worker 0 at once), and then aborts the process with a message
of its own. A connection that the kernel closes tells within milliseconds, whatever the process was doing, and whether
it had said goodbye. Under `mirrored run` the launcher sees all this by itself, and there is no lifeline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

_CONNECT_SECONDS: Final = 20.0
_HELLO_SECONDS: Final = 5.0
_LINE_BYTES: Final = 4096

Lost = Callable[[int, str], None]
"""What is called when a worker has gone: which, and its last words if it had any."""


@dataclasses.dataclass(frozen=True)
class Address:
    """Where worker 0 listens, and the word by which it knows the others."""

    port: int
    token: str


class Lifeline:
    """This worker's end: of one connection, or on worker 0 of one to each of the others.

    Args:
        worker: Which one this is.
        heartbeat_seconds: After how long without an answer a machine counts as gone.
        lost: Called when another worker has gone without saying that its program has ended; in a thread.
    """

    def __init__(self, worker: int, heartbeat_seconds: float, lost: Lost) -> None:
        self._worker = worker
        self._heartbeat_seconds = heartbeat_seconds
        self._lost = lost
        self._connections: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        # A child that outlives this process must not hold its connections open.
        os.register_at_fork(after_in_child=self._forget)

    def listen(self) -> Address:
        """Worker 0: lets the others connect from now on.

        Raises:
            OSError: This machine does not let it listen.
        """
        server, token = _server(), secrets.token_hex(16)
        self._start(self._accept, server, token)
        return Address(server.getsockname()[1], token)

    def connect(self, host: str, address: Address) -> None:
        """Another worker: connects, in a thread; if the network does not let it, there is no lifeline."""
        self._start(self._connect, host, address)

    def say(self, kind: str, text: str = "") -> None:
        """Tells the others that this worker goes: ``bye``, or ``failing`` and why."""
        self._send(f"{kind} {self._worker} {' '.join(text.split())}"[: _LINE_BYTES - 1])

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="mirrored-lifeline", daemon=True).start()

    def _send(self, line: str, *, but: int | None = None) -> None:
        with self._lock:
            for worker, connection in self._connections.items():
                if worker != but:
                    with contextlib.suppress(OSError):
                        connection.sendall(f"{line}\n".encode())

    def _accept(self, server: socket.socket, token: str) -> None:
        with server, contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                self._start(self._welcome, connection, token)

    def _welcome(self, connection: socket.socket, token: str) -> None:
        with connection:
            connection.settimeout(_HELLO_SECONDS)
            lines = _lines(connection)
            words = next(lines, "").split()
            if len(words) == 3 and words[0] == "here" and secrets.compare_digest(words[1], token):
                self._hear(int(words[2]), connection, lines)

    def _connect(self, host: str, address: Address) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, address.port), _CONNECT_SECONDS) as connection,
        ):
            connection.sendall(f"here {address.token} {self._worker}\n".encode())
            self._hear(0, connection, _lines(connection))

    def _hear(self, other: int, connection: socket.socket, lines: Iterator[str]) -> None:
        """Listens to another worker until it goes; what it says of itself or a third one is told on."""
        connection.settimeout(None)
        _keep_alive(connection, self._heartbeat_seconds)
        with self._lock:
            self._connections[other] = connection
        has_ended = False
        for line in lines:
            kind, _, rest = line.partition(" ")
            who, _, text = rest.partition(" ")
            if kind == "failing":
                self._tell(int(who), text, but=other)
            has_ended = has_ended or kind == "bye"
        if not has_ended:
            self._tell(other, "", but=other)

    def _tell(self, worker: int, text: str, *, but: int) -> None:
        if self._worker == 0:
            self._send(f"failing {worker} {text}", but=but)
        self._lost(worker, text)

    def _forget(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                os.close(connection.fileno())
        self._connections.clear()


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _lines(connection: socket.socket) -> Iterator[str]:
    heard = b""
    with contextlib.suppress(OSError):
        while len(heard) < _LINE_BYTES and (piece := connection.recv(_LINE_BYTES)):
            *whole, heard = (heard + piece).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")


def _keep_alive(connection: socket.socket, heartbeat_seconds: float) -> None:
    """Has the kernel notice a machine that does not answer, a little before JAX's runtime does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe = max(1, int(heartbeat_seconds / 5))
    for option, value in (("TCP_KEEPIDLE", probe), ("TCP_KEEPINTVL", probe), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
