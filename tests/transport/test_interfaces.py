from __future__ import annotations

import socket

import pytest

from mirrored.transport import interfaces
from mirrored.transport.interfaces import interface_of, joined


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "localhost", "[127.0.0.1]"])
def test_the_loopback_interface_stays_closed_to_others(host):
    assert interface_of(host).startswith("127.")


def test_an_address_of_another_machine_is_no_interface_here():
    assert interface_of("192.0.2.1") == ""  # reserved for documentation
    assert interface_of("no-such-host.invalid") == ""


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.1.1"], ""),  # this machine's own name on Debian: the others know another address
        (["10.0.0.7", "10.1.0.7"], ""),
        (["10.0.0.7"], "10.0.0.7"),
        (["192.0.2.1"], ""),  # that of a router
        ([], ""),
    ],
)
def test_a_name(monkeypatch, addresses, expected):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(interfaces.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(interfaces, "_is_local", lambda address: address in ("127.0.1.1", "10.0.0.7", "10.1.0.7"))
    assert interface_of("host0") == expected


def test_addresses_with_ports():
    assert joined("127.0.0.1", 80) == "127.0.0.1:80"
    assert joined("::1", 80) == "[::1]:80"
