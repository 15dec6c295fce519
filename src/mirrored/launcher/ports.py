"""Free ports, held until they are used."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Ports that nobody listens at; held while the block runs, so that they are all different.

    Between the block and their use another program may take one: the coordinator then says which port is taken, and
    the launcher starts the workers again with others.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        yield [one.getsockname()[1] for one in sockets]
