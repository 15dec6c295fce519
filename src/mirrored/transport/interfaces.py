"""Chooses the network interface that a server listens on, for example only the loopback interface."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

ALL_INTERFACES: Final = ""


def interface_of(host: str) -> str:
    """Returns the address on which a server must listen to be reachable at `host`; "" for all interfaces.

    An address of this machine, or a name that resolves to one such address, determines the interface. Otherwise it is
    unknown, and the result is all interfaces: for an address that belongs to a translating router (NAT), a name with
    several addresses, or this machine's own name if it resolves to the loopback interface here (as on Debian) and to
    another address elsewhere.

    Args:
        host: A host name or an address; an IPv6 address may be in brackets.

    Example:
        >>> interface_of("127.0.0.1")
        '127.0.0.1'
    """
    host = host.strip("[]")
    if host == "localhost":
        return "127.0.0.1" if _is_local("127.0.0.1") else "::1"
    is_literal = _is_address(host)
    addresses = {host} if is_literal else _addresses(host)
    if len(addresses) != 1:
        return ALL_INTERFACES
    (address,) = addresses
    if not is_literal and ipaddress.ip_address(address).is_loopback:
        return ALL_INTERFACES
    return address if _is_local(address) else ALL_INTERFACES


def joined(host: str, port: int) -> str:
    """Joins host and port to ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _addresses(name: str) -> set[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    # The text of a link-local address includes its zone, after "%".
    return {str(address[0]).partition("%")[0] for *_, address in found}


def _is_local(address: str) -> bool:
    """Returns whether the address belongs to an interface of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
