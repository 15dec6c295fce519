"""The rendezvous of a job's workers at the coordinator's address; a failure names the missing workers.

JAX's own rendezvous aborts the process with a C++ stack trace if not all workers join in time, and prints nothing while
it waits. All workers therefore perform this rendezvous first. It prints which workers are missing while the others
wait, and names them in the error that all workers raise. The port is released to JAX as soon as all have joined.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from mirrored import settings
from mirrored._threads import start
from mirrored.cluster.tasks import Process
from mirrored.errors import RendezvousError
from mirrored.transport import Channel, RefusedError, Server, given_secret

# Waits for the coordinator; the error for an unreachable one names its address.

_CONNECT_PAUSE_SECONDS = 0.05
_LONGEST_CONNECT_PAUSE_SECONDS = 1.0


def wait_for_coordinator(address: str, timeout_seconds: float) -> float:
    """Waits until worker 0's process (the coordinator) listens at its address.

    Args:
        address: ``host:port``.
        timeout_seconds: How long to wait.

    Returns:
        The time waited, in seconds.

    Raises:
        RendezvousError: No program listens there, or the host name does not resolve.

    Example:
        >>> import socket
        >>> from mirrored.cluster import wait_for_coordinator
        >>> with socket.create_server(("localhost", 0)) as coordinator:  # stands for worker 0
        ...     wait_for_coordinator(f"localhost:{coordinator.getsockname()[1]}", timeout_seconds=5) < 5
        True
    """
    host, _, port = address.rpartition(":")
    start, pause = time.monotonic(), _CONNECT_PAUSE_SECONDS
    while True:
        left = timeout_seconds - (time.monotonic() - start)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=max(left, 0.001)):
                return time.monotonic() - start
        except OSError as error:
            if left <= pause:
                raise unreachable_error(address, time.monotonic() - start, error) from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_CONNECT_PAUSE_SECONDS)


def unreachable_error(address: str, seconds: float, error: OSError) -> RendezvousError:
    """Creates the error for a coordinator's address at which no program answers."""
    return RendezvousError(
        "waiting for the coordinator",
        found=f"no process answers at {address} after {seconds:.1f} s ({error})",
        rule="the first task of the cluster must listen there before the others start to train",
        remedy="check that it was started, that its host name resolves to its machine here, and that no firewall "
        "blocks the port",
    )


_TELL_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5
# Another program may hold the port for a moment; a server that refuses for longer has another cluster or secret.
_MOST_REFUSALS: Final = 8
# How long the connection of a worker that was interrupted and joins again may take to end.
_LEAVE_SECONDS: Final = 1.0


def meet(process: Process, interface: str, seconds: float, called: str) -> None:
    """Waits until all workers of the job are connected; after a timeout, raises an error that names missing workers.

    Args:
        process: This worker's place in the job.
        interface: The interface that worker 0 listens on; the empty string for all interfaces.
        seconds: How long to wait.
        called: What the user called, for messages.

    Raises:
        RendezvousError: Not all have joined in time, the coordinator cannot be reached, or its port is taken.
    """
    # The secret contains the cluster: workers with different clusters refuse each other.
    description = json.dumps([process.num_processes, *process.addresses]).encode()
    secret = hashlib.sha256(description).digest() + given_secret()
    if process.index == 0:
        _Host(process, seconds).wait(interface, secret, called)
    else:
        _Guest(process, seconds).wait(secret)


class _Host:
    """Worker 0's side of the rendezvous: accepts the other workers, and tells them when all have joined.

    Worker 0's thread takes no lock that is written in Python, such as that of a `threading.Condition`: Ctrl-C could
    leave it held.
    """

    def __init__(self, process: Process, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._start = time.monotonic()
        self._here: dict[int, Channel] = {}
        self._arrivals: SimpleQueue[int] = SimpleQueue()
        self._has_ended = False

    def wait(self, interface: str, secret: bytes, called: str) -> None:
        port = int(self._process.coordinator.rpartition(":")[2])
        try:
            server = Server(interface, port, secret, self._serve, name="mirrored-rendezvous")
        except OSError as error:
            raise _taken_port_error(port, self._process.coordinator, error, called) from None
        try:
            server.start()
            missing = self._wait_for_all()
            server.close()  # releases the port to JAX
            self._broadcast({"missing": missing} if missing else {"go": True})
            if missing:
                raise _missing_tasks_error(self._process, missing, time.monotonic() - self._start)
        except BaseException:
            self._hang_up()  # a worker that has not been told to go on joins again: worker 0 may call again
            server.close()
            raise

    def _wait_for_all(self) -> list[int]:
        """Waits for the other workers, and returns those that have not joined in time."""
        reported = self._start
        while True:
            missing = [index for index in range(1, self._process.num_processes) if index not in self._here]
            now = time.monotonic()
            left = self._start + self._seconds - now
            if not missing or left <= 0:
                return missing
            if now - reported >= _TELL_SECONDS:
                reported = now
                _say(_waiting(self._process, missing, now - self._start, self._seconds))
                self._broadcast({"waiting": missing, "seconds": now - self._start})
            with contextlib.suppress(Empty):
                self._arrivals.get(timeout=min(left, _TELL_SECONDS))

    def _broadcast(self, message: dict[str, Any]) -> None:
        for channel in list(self._here.values()):
            channel.send(message)

    def _hang_up(self) -> None:
        """Closes the connections to all workers; workers that connect later are disconnected at once."""
        self._has_ended = True
        for channel in list(self._here.values()):
            channel.close()

    def _serve(self, channel: Channel) -> None:
        """Registers the arrival of one worker, and serves its connection until the connection ends."""
        messages = channel.receive()
        index = next(messages, {}).get("here")
        if not isinstance(index, int) or not 0 < index < self._process.num_processes:
            return
        end = time.monotonic() + _LEAVE_SECONDS
        while self._here.setdefault(index, channel) is not channel:
            if time.monotonic() > end:
                channel.send({"twice": index})
                return
            time.sleep(_PAUSE_SECONDS)
        self._arrivals.put(index)
        if not self._has_ended:
            for _ in messages:
                pass
        del self._here[index]


class _Guest:
    """The rendezvous on workers other than worker 0: connects to worker 0, and waits until all have joined."""

    def __init__(self, process: Process, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._start = self._received_at = time.monotonic()

    def wait(self, secret: bytes) -> None:
        host, _, port = self._process.coordinator.rpartition(":")
        refusals, pause, reported = 0, _PAUSE_SECONDS, self._start
        while True:
            left = self._start + self._seconds - time.monotonic()
            try:
                channel = Channel.connect((host.strip("[]"), int(port)), secret, max(0.05, min(left, _CONNECT_SECONDS)))
            except OSError as error:
                refusals = refusals + 1 if isinstance(error, RefusedError) else 0
                self._check(error, left - pause, refusals)
                if time.monotonic() - reported >= _TELL_SECONDS:
                    reported = time.monotonic()
                    _say(_waiting(self._process, [0], reported - self._start, self._seconds))
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            with contextlib.closing(channel), (taking_part := threading.Lock()):
                self._report_silence_until_end(channel, taking_part)
                channel.send({"here": self._process.index})
                if self._receives_go(channel):
                    return
            time.sleep(pause)

    def _check(self, error: OSError, left: float, refusals: int) -> None:
        address, seconds = self._process.coordinator, time.monotonic() - self._start
        if isinstance(error, RefusedError) and (left <= 0 or refusals >= _MOST_REFUSALS):
            raise RendezvousError(
                "joining the cluster",
                found=f"the program that answers at {address} is not worker 0 of this job: {error}",
                rule=f"all workers must have the same cluster, and the same secret if {settings.SECRET.name} is set",
                remedy="compare the clusters in TF_CONFIG; check that no program of an earlier run uses that address",
            )
        if left <= 0:
            raise unreachable_error(address, seconds, error) from error

    def _report_silence_until_end(self, channel: Channel, taking_part: threading.Lock) -> None:
        """Starts a thread that closes `channel` after the rendezvous, and prints messages while worker 0 is silent.

        The thread also closes the channel some seconds after the timeout, so that a read from a silent worker 0 ends.
        The caller ends the thread by releasing `taking_part`: a ``with`` block does so even if it is interrupted.
        """
        end = max(time.monotonic(), self._start + self._seconds) + _CONNECT_SECONDS

        def attend() -> None:
            now = time.monotonic()
            while not taking_part.acquire(timeout=max(0.0, min(end - now, _TELL_SECONDS))) and now < end:
                now = time.monotonic()
                if now - self._received_at > 1.5 * _TELL_SECONDS:
                    _say(_waiting(self._process, [0], now - self._start, self._seconds))
            channel.close()

        start(threading.Thread(target=attend, name="mirrored-waiting", daemon=True))

    def _receives_go(self, channel: Channel) -> bool:
        """Waits for worker 0; returns True once all workers have joined, False if the connection ended."""
        for message in channel.receive():
            self._received_at = time.monotonic()
            if "go" in message:
                return True
            if "twice" in message:
                raise RendezvousError(
                    "joining the cluster",
                    found=f"another process has joined as worker {self._process.index} already",
                    rule="every process of the job must be a different task of the cluster",
                    remedy="give each process its own task.index in TF_CONFIG, and end processes of an earlier run",
                )
            seconds = time.monotonic() - self._start
            if "missing" in message:
                raise _missing_tasks_error(self._process, message["missing"], seconds)
            if "waiting" in message:
                _say(_waiting(self._process, message["waiting"], seconds, self._seconds))
        if time.monotonic() - self._start > self._seconds:
            raise _missing_tasks_error(self._process, [0], time.monotonic() - self._start)
        return False


def _say(text: str) -> None:
    print(f"mirrored: {text}", file=sys.stderr, flush=True)


def _named(process: Process, workers: Sequence[int]) -> str:
    shown = ", ".join(f"{worker} ({process.addresses[worker]})" for worker in workers[:5])
    more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
    return f"worker{'s' * (len(workers) > 1)} {shown}{more}"


def _waiting(process: Process, missing: Sequence[int], seconds: float, limit: float) -> str:
    return (
        f"worker {process.index} has waited {seconds:.0f} s of {limit:.0f} for {_named(process, missing)} to join; "
        f"{settings.RENDEZVOUS_SECONDS.name} sets the timeout"
    )


def _missing_tasks_error(process: Process, missing: Sequence[int], seconds: float) -> RendezvousError:
    return RendezvousError(
        "joining the cluster",
        found=f"{_named(process, missing)} did not join at {process.coordinator} within {seconds:.0f} s",
        rule=f"all {process.num_processes} tasks of the cluster must be started, with the same cluster in TF_CONFIG",
        remedy="check that they were started, what they logged, and that they can reach that address; "
        f"{settings.RENDEZVOUS_SECONDS.name} sets the timeout",
    )


def _taken_port_error(port: int, address: str, error: OSError, called: str) -> RendezvousError:
    return RendezvousError(
        called,
        found=f"port {port} of this machine is taken ({error.strerror}), so that the coordinator cannot listen at "
        f"{address}",
        rule="the first task of the cluster must listen at its address, where the others join",
        remedy="check that no program of an earlier run uses the port, or give the first task another port",
    )
