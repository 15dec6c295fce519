"""The rendezvous of the workers of a job, at the coordinator's address, before JAX's coordinator listens there.

JAX's own way to join aborts the process, with a C++ stack, if not all workers come in time, and says nothing while it
waits. So all workers meet here first. Who is missing is known by then, is said while the others wait, and is named in
the error that all of them raise. The port is JAX's as soon as all are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mirrored import settings
from mirrored.cluster.reaching import unreachable
from mirrored.cluster.tasks import Process
from mirrored.errors import RendezvousError
from mirrored.transport import Channel, RefusedError, Server, given_secret

_TELL_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5
# Another program may have the port for a moment; who refuses for longer has another cluster or secret.
_MOST_REFUSALS: Final = 8


def meet(process: Process, interface: str, seconds: float, called: str) -> None:
    """Waits until all workers of the job are there.

    Args:
        process: This worker's place in the job.
        interface: Where worker 0 listens, the empty string for all interfaces.
        seconds: How long to wait.
        called: What the user called, for messages.

    Raises:
        RendezvousError: Not all have come in time, the coordinator cannot be reached, or its port is taken.
    """
    # Workers that were given different clusters do not meet.
    description = json.dumps([process.num_processes, *process.addresses]).encode()
    secret = hashlib.sha256(description).digest() + given_secret()
    if process.index == 0:
        _Host(process, seconds).wait(interface, secret, called)
    else:
        _Guest(process, seconds).wait(secret)


class _Host:
    """Worker 0: notes which workers have arrived."""

    def __init__(self, process: Process, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._start = time.monotonic()
        self._here: dict[int, Channel] = {}
        self._changed = threading.Condition()

    def wait(self, interface: str, secret: bytes, called: str) -> None:
        port = int(self._process.coordinator.rpartition(":")[2])
        try:
            server = Server(interface, port, secret, self._serve, name="mirrored-rendezvous")
        except OSError as error:
            raise _taken(port, self._process.coordinator, error, called) from None
        try:
            missing = self._wait_for_all()
        finally:
            server.close()  # the port is JAX's from now on
        with self._changed:
            self._tell({"missing": missing} if missing else {"go": True})
        if missing:
            raise _missing(self._process, missing, time.monotonic() - self._start)

    def _wait_for_all(self) -> list[int]:
        """Returns the workers that have not arrived in time."""
        told = self._start
        while True:
            with self._changed:
                missing = [index for index in range(1, self._process.num_processes) if index not in self._here]
                now = time.monotonic()
                left = self._start + self._seconds - now
                if not missing or left <= 0:
                    return missing
                if now - told >= _TELL_SECONDS:
                    told = now
                    _say(_waiting(self._process, missing, now - self._start, self._seconds))
                    self._tell({"waiting": missing, "seconds": now - self._start})
                self._changed.wait(min(left, _TELL_SECONDS))

    def _tell(self, message: dict[str, Any]) -> None:
        for channel in self._here.values():
            channel.send(message)

    def _serve(self, channel: Channel) -> None:
        """Hears one worker until it goes."""
        messages = channel.receive()
        index = next(messages, {}).get("here")
        if not isinstance(index, int) or not 0 < index < self._process.num_processes:
            return
        with self._changed:
            if index in self._here:
                channel.send({"twice": index})
                return
            self._here[index] = channel
            self._changed.notify()
        for _ in messages:
            pass
        with self._changed:
            del self._here[index]


class _Guest:
    """Another worker: comes, and waits for the word of worker 0."""

    def __init__(self, process: Process, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._start = self._heard = time.monotonic()

    def wait(self, secret: bytes) -> None:
        host, _, port = self._process.coordinator.rpartition(":")
        refusals, pause, told = 0, _PAUSE_SECONDS, self._start
        while True:
            left = self._start + self._seconds - time.monotonic()
            try:
                channel = Channel.connect((host.strip("[]"), int(port)), secret, max(0.05, min(left, _CONNECT_SECONDS)))
            except OSError as error:
                refusals = refusals + 1 if isinstance(error, RefusedError) else 0
                self._check(error, left - pause, refusals)
                if time.monotonic() - told >= _TELL_SECONDS:
                    told = time.monotonic()
                    _say(_waiting(self._process, [0], told - self._start, self._seconds))
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            seconds = max(left, 0) + _CONNECT_SECONDS
            with contextlib.closing(channel), _closed_after(channel, seconds), self._telling():
                channel.send({"here": self._process.index})
                if self._hears_go(channel):
                    return
            time.sleep(pause)

    def _check(self, error: OSError, left: float, refusals: int) -> None:
        address, seconds = self._process.coordinator, time.monotonic() - self._start
        if isinstance(error, RefusedError) and (left <= 0 or refusals >= _MOST_REFUSALS):
            raise RendezvousError(
                "joining the cluster",
                found=f"what answers at {address} is not worker 0 of this job: {error}",
                rule=f"all workers are given the same cluster, and the same secret if {settings.SECRET.name} is set",
                remedy="compare the clusters in TF_CONFIG; look for a program of an earlier run at that address",
            )
        if left <= 0:
            raise unreachable(address, seconds, error) from error

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Says who is waited for, if worker 0 says nothing: it is stopped, or its machine does not answer."""
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(_TELL_SECONDS):
                now = time.monotonic()
                if now - self._heard > 1.5 * _TELL_SECONDS:
                    _say(_waiting(self._process, [0], now - self._start, self._seconds))

        threading.Thread(target=tell, name="mirrored-waiting", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _hears_go(self, channel: Channel) -> bool:
        """Whether all are there; False if worker 0 has gone, and may come again."""
        for message in channel.receive():
            self._heard = time.monotonic()
            if "go" in message:
                return True
            if "twice" in message:
                raise RendezvousError(
                    "joining the cluster",
                    found=f"another process has joined as worker {self._process.index} already",
                    rule="every process of the job is another task of the cluster",
                    remedy="give each process its own task.index in TF_CONFIG, and end what is left of an earlier run",
                )
            seconds = time.monotonic() - self._start
            if "missing" in message:
                raise _missing(self._process, message["missing"], seconds)
            if "waiting" in message:
                _say(_waiting(self._process, message["waiting"], seconds, self._seconds))
        if time.monotonic() - self._start > self._seconds:
            raise _missing(self._process, [0], time.monotonic() - self._start)
        return False


@contextlib.contextmanager
def _closed_after(channel: Channel, seconds: float) -> Iterator[None]:
    """Has the channel end after some time, also if worker 0 is stopped and says nothing."""
    timer = threading.Timer(seconds, channel.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    print(f"mirrored: {text}", file=sys.stderr, flush=True)


def _named(process: Process, workers: Sequence[int]) -> str:
    shown = ", ".join(f"{worker} ({process.addresses[worker]})" for worker in workers[:5])
    more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
    return f"worker{'s' * (len(workers) > 1)} {shown}{more}"


def _waiting(process: Process, missing: Sequence[int], seconds: float, limit: float) -> str:
    return (
        f"worker {process.index} has waited {seconds:.0f} s of {limit:.0f} for {_named(process, missing)} to join; "
        f"{settings.RENDEZVOUS_SECONDS.name} sets the limit"
    )


def _missing(process: Process, missing: Sequence[int], seconds: float) -> RendezvousError:
    return RendezvousError(
        "joining the cluster",
        found=f"{_named(process, missing)} did not come to {process.coordinator} within {seconds:.0f} s",
        rule=f"all {process.num_processes} tasks of the cluster are started, with the same cluster in TF_CONFIG",
        remedy="look whether they were started, at their output, and whether they reach that address; "
        f"{settings.RENDEZVOUS_SECONDS.name} says how long to wait",
    )


def _taken(port: int, address: str, error: OSError, called: str) -> RendezvousError:
    return RendezvousError(
        called,
        found=f"port {port} of this machine is taken ({error.strerror}), so that the coordinator cannot listen at "
        f"{address}",
        rule="the first task of the cluster listens at its address, where the others meet",
        remedy="look for a program of an earlier run that is still there, or give the first task another port",
    )
