"""A port at which only processes that know the secret are heard."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from mirrored.transport.channel import Channel, RefusedError

_HANDSHAKE_SECONDS: Final = 5.0
_MOST_STRANGERS: Final = 64
_PAUSE_SECONDS: Final = 0.05

Serve = Callable[[Channel], None]
"""What is called with each authenticated peer, in a thread of its own; the channel is closed when it returns."""


class Server:
    """Listens until it is closed.

    Connections that do not authenticate in time are dropped, and so is the oldest if there are too many of them.

    Args:
        host: The address to listen at, the empty string for all interfaces.
        port: 0 for a free one.
        secret: What the peers have to know.
        serve: Called with each of them.
        name: Of the threads.

    Raises:
        OSError: The port cannot be opened.
    """

    def __init__(self, host: str, port: int, secret: bytes, serve: Serve, *, name: str) -> None:
        self._secret, self._serve, self._name = secret, serve, name
        self._strangers: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name=name, daemon=True).start()

    def close(self) -> None:
        """Stops listening; channels that are open stay."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def forget(self) -> None:
        """Closes the descriptors of this server in a forked child, whose parent goes on to listen."""
        for one in (self._socket, *self._strangers):
            one.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed, or out of descriptors for a moment
                time.sleep(_PAUSE_SECONDS)
                continue
            self._admit(connection)
            try:
                threading.Thread(target=self._greet, args=(connection,), name=self._name, daemon=True).start()
            except RuntimeError:  # out of threads for a moment
                self._dismiss(connection)
                connection.close()

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers[connection] = None
            if len(self._strangers) > _MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # ends its handshake, and so its thread

    def _dismiss(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)

    def _greet(self, connection: socket.socket) -> None:
        with connection:
            try:
                channel = Channel.accept(connection, self._secret, _HANDSHAKE_SECONDS)
            except (RefusedError, OSError):
                return
            finally:
                self._dismiss(connection)
            self._serve(channel)


def _listening(host: str, port: int) -> socket.socket:
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
