"""Finds free ports."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Yields ports at which no program listens. They are bound while the block runs, so that all are different.

    Another program may take a port between the end of the block and its use. The coordinator then names the port in
    its error, and the launcher restarts the workers with other ports.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        yield [one.getsockname()[1] for one in sockets]
