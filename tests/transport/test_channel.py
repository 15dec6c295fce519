from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mirrored.transport import Channel, RefusedError, Server
from mirrored.transport import channel as channels
from transport.attacks import COUNT, attack, idle

SECRET = b"a secret of some length"


@contextlib.contextmanager
def pair() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends of a channel, and the socket of the client."""
    arrived: list[Channel] = []
    done, here = threading.Event(), threading.Event()

    def serve(channel: Channel) -> None:
        arrived.append(channel)
        here.set()
        done.wait(20)

    server = Server("127.0.0.1", 0, SECRET, serve, name="test")
    server.start()
    client = Channel.connect(("127.0.0.1", server.port), SECRET, 5)
    try:
        assert here.wait(5)
        yield arrived[0], client, client._connection
    finally:
        done.set()
        client.close()
        server.close()


def test_messages_arrive_whole_and_in_order_in_both_directions():
    with pair() as (server, client, _):
        sent = [{"number": number, "text": "é" * number * 100} for number in range(50)]
        for one in sent:
            assert client.send(one)
            assert server.send(one)
        heard = server.receive(), client.receive()
        assert [next(heard[0]) for _ in sent] == sent
        assert [next(heard[1]) for _ in sent] == sent


def test_the_secret_is_never_on_the_wire_and_a_forged_line_ends_the_channel():
    with pair() as (server, client, wire):
        client.send({"real": 1})
        wire.sendall(b"0" * 64 + b' {"forged": 2}\n')
        client.send({"real": 3})
        assert list(server.receive()) == [{"real": 1}]


def test_a_line_that_is_repeated_ends_the_channel():
    with pair() as (server, client, wire):
        text = b'{"stop": "again"}'
        line = channels._mac(client._key, b"c", 0, text) + b" " + text + b"\n"
        wire.sendall(line * 2)
        assert list(server.receive()) == [{"stop": "again"}]


def test_a_message_cannot_be_reflected():
    with pair() as (server, client, wire):
        text = b'{"stop": "reflected"}'
        wire.sendall(channels._mac(client._key, b"s", 0, text) + b" " + text + b"\n")
        wire.shutdown(socket.SHUT_WR)
        assert list(server.receive()) == []


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_what_is_authentic_and_no_object_is_ignored(text):
    with pair() as (server, client, wire):
        wire.sendall(channels._mac(client._key, b"c", 0, text) + b" " + text + b"\n")
        client._sent = 1
        client.send({"real": 1})
        assert next(server.receive()) == {"real": 1}


def test_a_line_without_end_ends_the_channel(monkeypatch):
    monkeypatch.setattr(channels, "_MESSAGE_BYTES", 1 << 20)
    with pair() as (server, _, wire):
        flood = threading.Thread(target=_flood, args=(wire,))
        flood.start()
        assert list(server.receive()) == []
        server.close()  # as its owner does when nothing more comes
        flood.join(20)
        assert not flood.is_alive()


def _flood(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for _ in range(256):
            wire.sendall(b"x" * (1 << 16))


def test_another_secret_is_refused_on_both_sides():
    with contextlib.closing(Server("127.0.0.1", 0, SECRET, _fail, name="test")) as server:
        server.start()
        with pytest.raises(RefusedError, match="secrets differ"):
            Channel.connect(("127.0.0.1", server.port), SECRET + b"!", 5)


def _fail(channel: Channel) -> None:
    pytest.fail("a stranger was heard")


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"mirrored-1 00\nff\n", b"mirrored-2 00\n", b"x" * 100_000]
)
def test_a_server_without_the_secret_is_refused(answer):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionError):
            Channel.connect(("127.0.0.1", listening.getsockname()[1]), SECRET, 5)
        thread.join(10)


def test_a_handshake_that_dribbles_is_ended():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stop = threading.Event()

        def dribble() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    theirs.sendall(b"x")

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            with pytest.raises(OSError, match="takes too long|timed out"):
                Channel.accept(ours, SECRET, 0.3)
        finally:
            stop.set()
            thread.join(5)


def test_malformed_messages_and_idle_strangers_do_not_keep_a_peer_out():
    heard: list[dict[str, object]] = []

    def serve(channel: Channel) -> None:
        heard.extend(channel.receive())

    with contextlib.closing(Server("127.0.0.1", 0, SECRET, serve, name="test")) as server:
        server.start()
        with idle(server.port, 100):
            assert attack(server.port) >= COUNT
            client = Channel.connect(("127.0.0.1", server.port), SECRET, 20)
            client.send({"real": 1})
            client.close()
            end = time.monotonic() + 10
            while not heard and time.monotonic() < end:
                time.sleep(0.01)
    assert heard == [{"real": 1}], json.dumps(heard)


@pytest.mark.long
def test_a_peer_that_does_not_read_does_not_hold_the_sender_up(monkeypatch):
    monkeypatch.setattr(channels, "_SEND_SECONDS", 1)
    with pair() as (server, _, _):
        text = "x" * (1 << 20)
        results = [server.send({"text": text}) for _ in range(64)]
        assert results[0]
        assert not results[-1]
