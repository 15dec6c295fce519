"""An authenticated connection between two processes that know the same secret.

Each side proves by an HMAC over two random challenges that it knows the secret, which itself is never sent. Each
message is then a line with an HMAC over its direction, number and text, so that no message can be forged, repeated or
omitted. Messages are authenticated, not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Self

PROTOCOL: Final = "mirrored-1"
_HANDSHAKE_BYTES: Final = 512
_MESSAGE_BYTES: Final = 1 << 24
_CHUNK_BYTES: Final = 1 << 16
_MAC_CHARACTERS: Final = 64
_SEND_SECONDS: Final = 10
_REFUSED: Final = "refused"


class RefusedError(ConnectionError):
    """Error raised when the process at the other end of a connection does not know the secret or the protocol."""


class Channel:
    """One end of an authenticated connection over which two processes exchange JSON messages.

    Context: any thread may send; one thread receives.

    Args:
        connection: A connected socket, which the channel owns from now on.
        key: The key of this connection.
        is_server: Whether this is the server's side.
        rest: Bytes received after the handshake.
    """

    def __init__(self, connection: socket.socket, key: bytes, *, is_server: bool, rest: bytes) -> None:
        self._connection, self._key, self._rest = connection, key, rest
        self._send_direction, self._receive_direction = (b"s", b"c") if is_server else (b"c", b"s")
        self._sent = 0
        self._lock = threading.Lock()
        connection.settimeout(None)
        # A stopped peer must not block this process: sending to it fails after a timeout, which breaks the connection.
        limit = struct.pack("ll", _SEND_SECONDS, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    @classmethod
    def accept(cls, connection: socket.socket, secret: bytes, seconds: float) -> Self:
        """Authenticates a client that has connected, and returns the channel to it.

        Both sides prove that they know the secret.

        Args:
            connection: An accepted socket.
            secret: The secret that both sides know.
            seconds: The timeout of the whole handshake.

        Raises:
            RefusedError: The peer does not know the secret.
            OSError: The connection is broken.
        """
        handshake = _Handshake(connection, seconds)
        challenge = secrets.token_hex(32)
        handshake.say(PROTOCOL, challenge)
        client_challenge, proof = handshake.hear(2)
        if not _is_equal(proof, _proof(secret, b"client", challenge, client_challenge)):
            handshake.say(_REFUSED)
            raise RefusedError("the peer does not know the secret")
        handshake.say(_proof(secret, b"server", challenge, client_challenge))
        return cls(connection, _session_key(secret, challenge, client_challenge), is_server=True, rest=handshake.rest)

    @classmethod
    def connect(cls, address: tuple[str, int], secret: bytes, seconds: float) -> Self:
        """Connects to a server that knows the same secret, and returns the channel to it.

        Args:
            address: Host and port.
            secret: The secret that both sides know.
            seconds: The timeout of connecting, and that of the handshake.

        Raises:
            RefusedError: The server does not know the secret, or refuses the secret of this process.
            OSError: No process answers there.
        """
        connection = socket.create_connection(address, timeout=seconds)
        try:
            handshake = _Handshake(connection, seconds)
            protocol, server_challenge = handshake.hear(2)
            if protocol != PROTOCOL:
                raise RefusedError(f"the server speaks the protocol {protocol!r}, not {PROTOCOL!r}")
            challenge = secrets.token_hex(32)
            handshake.say(challenge, _proof(secret, b"client", server_challenge, challenge))
            (proof,) = handshake.hear(1)
            if not _is_equal(proof, _proof(secret, b"server", server_challenge, challenge)):
                raise RefusedError("the secrets differ" if proof == _REFUSED else "the server does not know the secret")
            return cls(
                connection,
                _session_key(secret, server_challenge, challenge),
                is_server=False,
                rest=handshake.rest,
            )
        except BaseException:
            connection.close()
            raise

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a message; returns False if the connection is broken.

        The connection is then broken permanently.
        """
        text = json.dumps(message).encode()
        with self._lock:
            line = _mac(self._key, self._send_direction, self._sent, text) + b" " + text + b"\n"
            self._sent += 1
            try:
                self._connection.sendall(line)
            except OSError:
                self._shut_down()
                return False
        return True

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yields the received messages until the connection ends or a message fails authentication.

        A message that is too long also ends the connection. An authentic message that is not a JSON object is ignored.
        """
        number = 0
        for line in _lines(self._connection, self._rest, _MESSAGE_BYTES):
            mac, text = line[:_MAC_CHARACTERS], line[_MAC_CHARACTERS + 1 :]
            if not hmac.compare_digest(mac, _mac(self._key, self._receive_direction, number, text)):
                break
            number += 1
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(text)
                if isinstance(message, dict):
                    yield message
        self._shut_down()

    def keep_alive(self, seconds: float) -> None:
        """Turns on TCP keep-alive, which closes the connection if the peer's machine is silent for about `seconds`."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        probe = max(1, int(seconds / 5))
        for option, value in (("TCP_KEEPIDLE", probe), ("TCP_KEEPINTVL", probe), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                self._connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    @property
    def peer(self) -> str:
        """The network address of the process at the other end."""
        return str(self._connection.getpeername()[0])

    def fileno(self) -> int:
        """Returns the file descriptor of the connection's socket."""
        return self._connection.fileno()

    def close(self) -> None:
        """Closes the connection, and ends a `receive` that waits in another thread."""
        self._shut_down()
        self._connection.close()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class _Handshake:
    """The messages of a connection's authentication handshake: short lines of words, exchanged until a deadline."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds
        self.rest = b""

    def say(self, *words: str) -> None:
        self._connection.settimeout(self._left())
        self._connection.sendall(" ".join(words).encode() + b"\n")

    def hear(self, count: int) -> list[str]:
        """Returns the words of the next line that the peer sends.

        Raises:
            RefusedError: The line does not have `count` words, is too long, or does not arrive in time.
        """
        while b"\n" not in self.rest:
            self._connection.settimeout(self._left())
            piece = self._connection.recv(_HANDSHAKE_BYTES)
            self.rest += piece
            if not piece or (b"\n" not in self.rest and len(self.rest) > _HANDSHAKE_BYTES):
                raise RefusedError("the peer has closed the connection, or does not speak this protocol")
        line, self.rest = self.rest.split(b"\n", 1)
        words = line.decode(errors="replace").split(" ")
        if len(words) != count:
            raise RefusedError("the peer does not speak this protocol")
        return words

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise RefusedError("the handshake takes too long")
        return left


def _lines(connection: socket.socket, rest: bytes, limit: int) -> Iterator[bytes]:
    """Yields the received lines; ends with the connection, or if an unfinished line exceeds `limit` bytes."""
    received, searched = bytearray(rest), 0
    while True:
        end = received.find(b"\n", searched)
        if end >= 0:
            yield bytes(received[:end])
            del received[: end + 1]
            searched = 0
            continue
        searched = len(received)
        if searched > limit:
            return
        try:
            piece = connection.recv(_CHUNK_BYTES)
        except OSError:
            return
        if not piece:
            return
        received += piece


def _mac(key: bytes, direction: bytes, number: int, text: bytes) -> bytes:
    return hmac.new(key, direction + number.to_bytes(8, "big") + text, hashlib.sha256).hexdigest().encode()


def _proof(secret: bytes, role: bytes, server_challenge: str, client_challenge: str) -> str:
    text = b"|".join((PROTOCOL.encode(), role, server_challenge.encode(), client_challenge.encode()))
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _session_key(secret: bytes, server_challenge: str, client_challenge: str) -> bytes:
    return bytes.fromhex(_proof(secret, b"session", server_challenge, client_challenge))


def _is_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
