"""Waits for the coordinator; the error for an unreachable one names its address."""

from __future__ import annotations

import socket
import time

from mirrored.errors import RendezvousError

_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


def wait_for_coordinator(address: str, timeout_seconds: float) -> float:
    """Waits until a program listens at an address.

    Args:
        address: ``host:port``.
        timeout_seconds: How long to wait.

    Returns:
        The time waited, in seconds.

    Raises:
        RendezvousError: No program listens there, or the host name does not resolve.
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
    """Returns the error for an address that does not answer."""
    return RendezvousError(
        "waiting for the coordinator",
        found=f"no process answers at {address} after {seconds:.1f} s ({error})",
        rule="the first task of the cluster listens there before the others start to train",
        remedy="check that it was started, that its host name resolves to its machine here, and that no firewall "
        "blocks the port",
    )
