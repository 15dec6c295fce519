"""A server that accepts only connections of peers that know the job's secret."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from mirrored._threads import start
from mirrored.transport.channel import Channel, RefusedError

_HANDSHAKE_SECONDS: Final = 5.0
_MOST_UNAUTHENTICATED: Final = 64
_PAUSE_SECONDS: Final = 0.05

Serve = Callable[[Channel], None]
"""The callback for each authenticated peer, called in a thread of its own; the channel is closed when it returns."""


class Server:
    """A server that listens on a port and, once started, calls a function with each authenticated connection.

    Connections that do not authenticate in time are dropped. If too many have not authenticated yet, the oldest of them
    is dropped.

    Args:
        host: The address to listen at; the empty string for all interfaces.
        port: The port; 0 for a free one.
        secret: The secret that peers must know.
        serve: Called with the channel of each authenticated peer.
        name: The name of the threads.

    Raises:
        OSError: The port cannot be opened.
    """

    def __init__(self, host: str, port: int, secret: bytes, serve: Serve, *, name: str) -> None:
        self._secret, self._serve, self._name = secret, serve, name
        self._unauthenticated: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Starts to accept connections; called once.

        It is separate from the constructor: an exception that interrupts the creation, such as Ctrl-C, then leaves no
        thread that would keep the port.
        """
        start(threading.Thread(target=self._accept, name=self._name, daemon=True))

    def close(self) -> None:
        """Stops listening for new connections; established connections stay open."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def forget(self) -> None:
        """Closes a forked child's copies of the server's sockets; the server keeps running in the parent process."""
        for one in (self._socket, *self._unauthenticated):
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
                threading.Thread(target=self._authenticate, args=(connection,), name=self._name, daemon=True).start()
            except RuntimeError:  # out of threads for a moment
                self._dismiss(connection)
                connection.close()

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            self._unauthenticated[connection] = None
            if len(self._unauthenticated) > _MOST_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # ends its handshake, and so its thread

    def _dismiss(self, connection: socket.socket) -> None:
        with self._lock:
            self._unauthenticated.pop(connection, None)

    def _authenticate(self, connection: socket.socket) -> None:
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
