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
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from mirrored.transport import Channel, Server, given_secret, interface_of
from mirrored.watchdog.forked_children import in_forked_children

_CONNECT_SECONDS: Final = 20.0
_WORDS_CHARACTERS: Final = 4096

Lost = Callable[[int, str], None]
"""What is called when a worker has gone: which, and its last words if it had any."""


@dataclasses.dataclass(frozen=True)
class Address:
    """Where worker 0 listens, and the token by which the workers of this job authenticate each other.

    The workers learn it from JAX's coordinator. A secret that the user has configured counts as well.
    """

    port: int
    token: str

    @property
    def secret(self) -> bytes:
        """What both sides have to know."""
        return self.token.encode() + given_secret()


class PeerConnection:
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
        self._channels: dict[int, Channel] = {}
        self._server: Server | None = None
        self._lock = threading.Lock()
        # A child that outlives this process must not hold its connections open.
        in_forked_children(self._forget)

    def listen(self, host: str) -> Address:
        """Worker 0: lets the others connect from now on.

        Args:
            host: By which they reach this machine; it chooses the interface.

        Raises:
            OSError: This machine does not let it listen.
            ArgumentError: The secret that the user has configured cannot be read.
        """
        token = secrets.token_hex(32)
        secret = Address(0, token).secret
        self._server = Server(interface_of(host), 0, secret, self._serve, name="mirrored-lifeline")
        return Address(self._server.port, token)

    def connect(self, host: str, address: Address) -> None:
        """Another worker: connects, in a thread; if the network does not let it, there is no lifeline."""
        arguments = (host, address.port, address.secret)
        threading.Thread(target=self._connect, args=arguments, name="mirrored-lifeline", daemon=True).start()

    def say(self, kind: str, text: str = "") -> None:
        """Tells the others that this worker goes: ``bye``, or ``failing`` and why."""
        self._send({"kind": kind, "worker": self._worker, "text": " ".join(text.split())[:_WORDS_CHARACTERS]})

    def _send(self, message: dict[str, Any], *, but: int | None = None) -> None:
        with self._lock:
            channels = list(self._channels.items())
        for worker, channel in channels:
            if worker != but:
                channel.send(message)

    def _serve(self, channel: Channel) -> None:
        """Worker 0: hears a worker, once it has said which one it is."""
        messages = channel.receive()
        worker = next(messages, {}).get("here")
        if isinstance(worker, int) and worker > 0:
            self._hear(worker, channel, messages)

    def _connect(self, host: str, port: int, secret: bytes) -> None:
        with contextlib.suppress(OSError):
            channel = Channel.connect((host, port), secret, _CONNECT_SECONDS)
            channel.send({"here": self._worker})
            self._hear(0, channel, channel.receive())
            channel.close()

    def _hear(self, other: int, channel: Channel, messages: Iterator[dict[str, Any]]) -> None:
        """Listens to another worker until it goes; what it says of itself or a third one is told on."""
        channel.keep_alive(self._heartbeat_seconds)
        with self._lock:
            self._channels[other] = channel
        has_ended = False
        for message in messages:
            kind, worker, text = (message.get(key) for key in ("kind", "worker", "text"))
            if kind == "failing" and isinstance(worker, int) and isinstance(text, str):
                self._tell(worker, text[:_WORDS_CHARACTERS], but=other)
            has_ended = has_ended or kind == "bye"
        if not has_ended:
            self._tell(other, "", but=other)

    def _tell(self, worker: int, text: str, *, but: int) -> None:
        if self._worker == 0:
            self._send({"kind": "failing", "worker": worker, "text": text}, but=but)
        self._lost(worker, text)

    def _forget(self) -> None:
        """In a forked child: closes the descriptors only, since the connections are the parent's."""
        if self._server is not None:
            self._server.forget()
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                os.close(channel.fileno())
        self._channels.clear()
