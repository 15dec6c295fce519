"""Waiting for the coordinator, so that one that is not there has a name and an address."""

from __future__ import annotations

import socket
import time

from mirrored.errors import RendezvousError

_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


def wait_for_coordinator(address: str, timeout_seconds: float) -> float:
    """Waits until something listens at an address.

    Args:
        address: ``host:port``.
        timeout_seconds: How long to wait.

    Returns:
        The seconds that it took.

    Raises:
        RendezvousError: Nothing listens there, or the host has no address.
    """
    host, _, port = address.rpartition(":")
    start, pause = time.monotonic(), _PAUSE_SECONDS
    while True:
        left = timeout_seconds - (time.monotonic() - start)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=max(left, 0.001)):
                return time.monotonic() - start
        except OSError as error:
            if left <= pause:
                raise unreachable(address, time.monotonic() - start, error) from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def unreachable(address: str, seconds: float, error: OSError) -> RendezvousError:
    """The error for an address that does not answer."""
    return RendezvousError(
        "waiting for the coordinator",
        found=f"nobody answers at {address} after {seconds:.1f} s ({error})",
        rule="the first task of the cluster listens there before the others start to train",
        remedy="look whether it was started, whether its name leads to its machine from here, and whether a firewall "
        "closes the port",
    )
