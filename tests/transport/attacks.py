"""Malformed messages and peers without the secret, against a port of this machine."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct

# How many messages each attack sends. The suite keeps it short; give ATTACKS=100000 for a long one.
COUNT = int(os.environ.get("ATTACKS", "600"))
_PER_CONNECTION = 20
_KINDS = (
    b'{"stop": "by a stranger"}\n',
    b'{"hello": 1, "nodes": 2, "workers": 1, "ports": [1], "name": "stranger", "restart": 0}\n',
    b'{"done": 0}\n',
    b'{"here": 1}\n',
    b"mirrored-1 " + b"0" * 64 + b"\n",
    b"0" * 64 + b" " + b"0" * 64 + b"\n",
    b"failing 1 by a stranger\n",
    b"here " + b"0" * 32 + b" 1\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
    b"\xff\xfe\x00\n" * 9,
    b"[" * 2000 + b"\n",
    b"\n",
    b" \n",
    b"x" * 4096,
    b"",
)


def attack(port: int, count: int = COUNT, host: str = "127.0.0.1") -> int:
    """Sends malformed messages over many connections. Returns how many."""
    chosen, sent = random.Random(port), 0
    while sent < count:
        kinds = [chosen.choice(_KINDS) for _ in range(_PER_CONNECTION)]
        # Whoever listens may hang up at any time, and is too busy to answer now and then.
        with contextlib.suppress(OSError), socket.create_connection((host, port), 10) as stranger:
            if chosen.random() < 0.5:  # ends by a reset
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.sendall(b"".join(kinds) if chosen.random() < 0.5 else chosen.choice(kinds))
            if chosen.random() < 0.1:
                stranger.settimeout(0.2)
                stranger.recv(64)
        sent += _PER_CONNECTION
    return sent


def idle(port: int, count: int, host: str = "127.0.0.1") -> contextlib.ExitStack:
    """Connections that say nothing, open until the result is closed."""
    stack = contextlib.ExitStack()
    for _ in range(count):
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_connection((host, port), 10))
    return stack


MALFORMED = (
    {},
    {"hello": "one"},
    {"hello": -1, "nodes": 2, "ports": [], "name": "x"},
    {"hello": True, "nodes": 2, "ports": [], "name": "x"},
    {"hello": 1, "nodes": 2, "ports": ["a"], "name": "x"},
    {"hello": 1, "nodes": 2, "ports": [70000], "name": "x"},
    {"hello": 1, "nodes": 2, "ports": {}, "name": 3},
    {"hello": 10**30, "nodes": 10**30, "ports": [], "name": "x"},
    {"stop": None},
    {"stop": ["a"]},
    {"done": "x"},
    {"here": "zero"},
    {"here": -5},
    {"here": 10**30},
    {"kind": "failing", "worker": "x", "text": 3},
    {"kind": ["failing"]},
    {"kind": 4, "worker": None},
)
"""Messages of a peer that knows the secret, and which have no effect."""
