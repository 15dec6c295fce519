"""Connections from every worker to worker 0; a broken connection immediately shows that a worker has ended.

JAX's runtime detects a lost process after the heartbeat timeout (worker 0: at once), and then aborts the process with a
message of its own. The kernel closes a connection within milliseconds, whatever the process was doing. A worker that
ends normally says so before. Under `mirrored run` the launcher detects all this itself, and there is no peer
connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from mirrored._threads import start
from mirrored.transport import Channel, Server, given_secret, interface_of
from mirrored.watchdog.fail_fast_exit import in_forked_children

_CONNECT_SECONDS: Final = 20.0
_REPORT_CHARACTERS: Final = 4096

Lost = Callable[[int, str], None]
"""The callback for a lost worker: its index, and its exit report, empty if it sent none."""


@dataclasses.dataclass(frozen=True)
class Address:
    """The port of worker 0 to which the other workers connect, and the token that authenticates these connections.

    The workers read it from JAX's coordinator. A secret that the user has configured is required in addition.
    """

    port: int
    token: str

    @property
    def secret(self) -> bytes:
        """The secret for authenticating connections: the address's token followed by the user's configured secret."""
        return self.token.encode() + given_secret()


class PeerConnection:
    """A worker's connection to worker 0; on worker 0 itself, the connections to all other workers.

    Args:
        worker: The index of this worker.
        heartbeat_seconds: How long a machine may not answer before its connection is closed.
        lost: Called, in a thread, when another worker ends without the message that its program has ended.
    """

    def __init__(self, worker: int, heartbeat_seconds: float, lost: Lost) -> None:
        self._worker = worker
        self._heartbeat_seconds = heartbeat_seconds
        self._lost = lost
        self._channels: dict[int, Channel] = {}
        self._server: Server | None = None
        self._lock = threading.Lock()
        # A child that outlives this process must not hold its connections open.
        in_forked_children(self._forget)

    def listen(self, host: str) -> Address:
        """On worker 0, starts accepting connections from the other workers, and returns the address to connect to.

        Args:
            host: The host name by which they reach this machine; it determines the interface.

        Raises:
            OSError: The port cannot be opened.
            ArgumentError: The secret that the user has configured cannot be read.
        """
        token = secrets.token_hex(32)
        secret = Address(0, token).secret
        self._server = Server(interface_of(host), 0, secret, self._serve, name="mirrored-peer-connection")
        self._server.start()
        return Address(self._server.port, token)

    def connect(self, host: str, address: Address) -> None:
        """Connects this worker to worker 0 in a background thread; called on all workers but worker 0.

        A failure to connect is ignored: JAX's heartbeat remains.
        """
        arguments = (host, address.port, address.secret)
        start(threading.Thread(target=self._connect, args=arguments, name="mirrored-peer-connection", daemon=True))

    def announce_end(self, kind: str, text: str = "") -> None:
        """Tells the other workers that this worker ends: normally (``bye``) or because of an error (``failing``).

        Args:
            kind: ``bye`` or ``failing``.
            text: The cause of the failure.
        """
        self._send({"kind": kind, "worker": self._worker, "text": " ".join(text.split())[:_REPORT_CHARACTERS]})

    def _send(self, message: dict[str, Any], *, but: int | None = None) -> None:
        with self._lock:
            channels = list(self._channels.items())
        for worker, channel in channels:
            if worker != but:
                channel.send(message)

    def _serve(self, channel: Channel) -> None:
        """On worker 0, receives the messages of a worker that has identified itself."""
        messages = channel.receive()
        worker = next(messages, {}).get("here")
        if isinstance(worker, int) and worker > 0:
            self._receive(worker, channel, messages)

    def _connect(self, host: str, port: int, secret: bytes) -> None:
        with contextlib.suppress(OSError):
            channel = Channel.connect((host, port), secret, _CONNECT_SECONDS)
            channel.send({"here": self._worker})
            self._receive(0, channel, channel.receive())
            channel.close()

    def _receive(self, other: int, channel: Channel, messages: Iterator[dict[str, Any]]) -> None:
        """Receives a worker's messages until its connection ends; reports each failed worker that the messages name."""
        channel.keep_alive(self._heartbeat_seconds)
        with self._lock:
            self._channels[other] = channel
        has_ended = False
        for message in messages:
            kind, worker, text = (message.get(key) for key in ("kind", "worker", "text"))
            if kind == "failing" and isinstance(worker, int) and isinstance(text, str):
                self._report(worker, text[:_REPORT_CHARACTERS], but=other)
            has_ended = has_ended or kind == "bye"
        if not has_ended:
            self._report(other, "", but=other)

    def _report(self, worker: int, text: str, *, but: int) -> None:
        if self._worker == 0:
            self._send({"kind": "failing", "worker": worker, "text": text}, but=but)
        self._lost(worker, text)

    def _forget(self) -> None:
        """Closes a forked child's copies of the descriptors; the connections stay open in the parent process."""
        if self._server is not None:
            self._server.forget()
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                os.close(channel.fileno())
        self._channels.clear()
