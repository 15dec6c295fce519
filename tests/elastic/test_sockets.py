"""Only the connections of Gloo are shut down, never those of the program."""

from __future__ import annotations

import contextlib
import socket

import pytest

from mirrored._jax.recovery import CollectiveSockets


@contextlib.contextmanager
def connection(server):
    with socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            yield here, there


def test_connections_at_the_observed_port_are_shut_down_on_both_ends_and_no_others():
    sockets = CollectiveSockets()
    with socket.create_server(("127.0.0.1", 0)) as of_program, contextlib.ExitStack() as stack:
        with sockets.observe():
            of_gloo = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        assert sockets.own == of_gloo.getsockname()[1]
        ours, _ = stack.enter_context(connection(of_gloo))
        theirs, other = stack.enter_context(connection(of_program))
        assert sockets.shut_down() == 1  # the accepted end; the other end belongs to another process in a job
        assert ours.recv(1) == b""
        theirs.send(b"x")
        assert other.recv(1) == b"x"


def test_connections_to_the_ports_of_other_workers_are_shut_down():
    with socket.create_server(("127.0.0.1", 0)) as of_peer, connection(of_peer) as (ours, theirs):
        assert CollectiveSockets(others={of_peer.getsockname()[1]}).shut_down() == 1
        assert theirs.recv(1) == b""
        with pytest.raises(OSError, match="Broken pipe"):
            ours.send(b"x")


def test_nothing_is_shut_down_if_the_port_is_not_certain():
    sockets = CollectiveSockets()
    with contextlib.ExitStack() as stack:
        with sockets.observe():
            servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        assert sockets.own is None
        stack.enter_context(connection(servers[0]))
        assert sockets.shut_down() == 0
