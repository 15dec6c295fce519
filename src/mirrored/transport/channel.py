"""A connection between two processes that know the same secret.

Both sides prove by an HMAC over two random challenges that they know it; the secret itself is never sent. Each message
then is a line with an HMAC over its direction, number and text, so that none can be forged, repeated or left out.
Messages are authenticated, not encrypted.
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
    """The other side does not know the secret, or does not speak this protocol."""


class Channel:
    """One side of an authenticated connection.

    Context: any thread may send; one thread receives.

    Args:
        connection: Connected; it is the channel's from now on.
        key: Of this session.
        is_server: Which side this is.
        rest: What was received after the handshake.
    """

    def __init__(self, connection: socket.socket, key: bytes, *, is_server: bool, rest: bytes) -> None:
        self._connection, self._key, self._rest = connection, key, rest
        self._mine, self._theirs = (b"s", b"c") if is_server else (b"c", b"s")
        self._sent = 0
        self._lock = threading.Lock()
        connection.settimeout(None)
        # A peer that is stopped must not hold this process up: its connection is given up.
        limit = struct.pack("ll", _SEND_SECONDS, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    @classmethod
    def accept(cls, connection: socket.socket, secret: bytes, seconds: float) -> Self:
        """Authenticates a peer that has connected to this process.

        Args:
            connection: What was accepted.
            secret: What both sides know.
            seconds: How long the handshake may take in all.

        Raises:
            RefusedError: The peer does not know the secret.
            OSError: The connection is broken.
        """
        handshake = _Handshake(connection, seconds)
        challenge = secrets.token_hex(32)
        handshake.say(PROTOCOL, challenge)
        theirs, proof = handshake.hear(2)
        if not _is_equal(proof, _proof(secret, b"client", challenge, theirs)):
            handshake.say(_REFUSED)
            raise RefusedError("the peer does not know the secret")
        handshake.say(_proof(secret, b"server", challenge, theirs))
        return cls(connection, _session(secret, challenge, theirs), is_server=True, rest=handshake.rest)

    @classmethod
    def connect(cls, address: tuple[str, int], secret: bytes, seconds: float) -> Self:
        """Connects to a server that knows the secret.

        Args:
            address: Host and port.
            secret: What both sides know.
            seconds: How long connecting and the handshake may take, each.

        Raises:
            RefusedError: What answers there does not know the secret, or says that this process does not.
            OSError: Nobody answers there.
        """
        connection = socket.create_connection(address, timeout=seconds)
        try:
            handshake = _Handshake(connection, seconds)
            protocol, theirs = handshake.hear(2)
            if protocol != PROTOCOL:
                raise RefusedError(f"what answers there speaks {protocol!r}, not {PROTOCOL!r}")
            challenge = secrets.token_hex(32)
            handshake.say(challenge, _proof(secret, b"client", theirs, challenge))
            (proof,) = handshake.hear(1)
            if not _is_equal(proof, _proof(secret, b"server", theirs, challenge)):
                raise RefusedError("the secrets differ" if proof == _REFUSED else "what answers there has no secret")
            return cls(connection, _session(secret, theirs, challenge), is_server=False, rest=handshake.rest)
        except BaseException:
            connection.close()
            raise

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a message. Returns whether it could; if not, the channel is broken from now on."""
        text = json.dumps(message).encode()
        with self._lock:
            line = _mac(self._key, self._mine, self._sent, text) + b" " + text + b"\n"
            self._sent += 1
            try:
                self._connection.sendall(line)
            except OSError:
                self._shut_down()
                return False
        return True

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yields messages until the connection ends, is broken, or something forged or too long comes.

        What is authentic, but not a JSON object, is ignored.
        """
        number = 0
        for line in _lines(self._connection, self._rest, _MESSAGE_BYTES):
            mac, text = line[:_MAC_CHARACTERS], line[_MAC_CHARACTERS + 1 :]
            if not hmac.compare_digest(mac, _mac(self._key, self._theirs, number, text)):
                break
            number += 1
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(text)
                if isinstance(message, dict):
                    yield message
        self._shut_down()

    def keep_alive(self, seconds: float) -> None:
        """Has the kernel end the connection if the peer's machine does not answer for about `seconds`."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        probe = max(1, int(seconds / 5))
        for option, value in (("TCP_KEEPIDLE", probe), ("TCP_KEEPINTVL", probe), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                self._connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    @property
    def peer(self) -> str:
        """The address of the other side."""
        return str(self._connection.getpeername()[0])

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._connection.fileno()

    def close(self) -> None:
        """Ends the connection; who receives from it is woken."""
        self._shut_down()
        self._connection.close()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class _Handshake:
    """Short lines of words, until a deadline."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds
        self.rest = b""

    def say(self, *words: str) -> None:
        self._connection.settimeout(self._left())
        self._connection.sendall(" ".join(words).encode() + b"\n")

    def hear(self, count: int) -> list[str]:
        """The words of one line.

        Raises:
            RefusedError: There is no such line.
        """
        while b"\n" not in self.rest:
            self._connection.settimeout(self._left())
            piece = self._connection.recv(_HANDSHAKE_BYTES)
            self.rest += piece
            if not piece or (b"\n" not in self.rest and len(self.rest) > _HANDSHAKE_BYTES):
                raise RefusedError("the peer has hung up, or sends something else")
        line, self.rest = self.rest.split(b"\n", 1)
        words = line.decode(errors="replace").split(" ")
        if len(words) != count:
            raise RefusedError("the peer sends something else")
        return words

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise RefusedError("the handshake takes too long")
        return left


def _lines(connection: socket.socket, rest: bytes, limit: int) -> Iterator[bytes]:
    """Whole lines of at most `limit` bytes; a longer one ends them."""
    heard, searched = bytearray(rest), 0
    while True:
        end = heard.find(b"\n", searched)
        if end >= 0:
            yield bytes(heard[:end])
            del heard[: end + 1]
            searched = 0
            continue
        searched = len(heard)
        if searched > limit:
            return
        try:
            piece = connection.recv(_CHUNK_BYTES)
        except OSError:
            return
        if not piece:
            return
        heard += piece


def _mac(key: bytes, direction: bytes, number: int, text: bytes) -> bytes:
    return hmac.new(key, direction + number.to_bytes(8, "big") + text, hashlib.sha256).hexdigest().encode()


def _proof(secret: bytes, role: bytes, server_challenge: str, client_challenge: str) -> str:
    text = b"|".join((PROTOCOL.encode(), role, server_challenge.encode(), client_challenge.encode()))
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _session(secret: bytes, server_challenge: str, client_challenge: str) -> bytes:
    return bytes.fromhex(_proof(secret, b"session", server_challenge, client_challenge))


def _is_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
