"""A worker's end of the protocol of elastic jobs: messages to and from the launcher, and interruption of training."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mirrored._jax import recovery
from mirrored._threads import start
from mirrored.elastic.phases import Phases
from mirrored.settings import ELASTIC
from mirrored.watchdog.fail_fast_exit import LauncherChannel

WORD: Final = "elastic"
"""The first word of the protocol's messages on the socket between a worker and its launcher."""
_REPEAT_SECONDS: Final = 0.02
_LONGEST_INTERVAL_SECONDS: Final = 1.0
_PROBE_BYTES: Final = 1 << 20
_PROBE_SLEEPS: Final = 10
_PROBE_SLEEP_SECONDS: Final = 0.01


class WorkersChanged(BaseException):
    """Exception that interrupts an elastic training function when a worker is lost or joins; `run` calls it again.

    It is not an `Exception`, so an ``except Exception`` in the program does not catch it.

    Example:
        >>> issubclass(WorkersChanged, Exception)
        False

    TensorFlow: no equivalent.
    """


@dataclasses.dataclass(frozen=True)
class Place:
    """This worker's role in a membership epoch (a fixed set of workers): rank, addresses, and snapshot to load.

    Attributes:
        epoch: The number of the epoch.
        rank: The index of this worker.
        addresses: The names of all workers, by rank.
        coordinator: ``host:port`` of JAX's coordination service for this epoch.
        step: The step of the snapshot from which all workers continue, the newest that any of them has; None if no
            worker has a snapshot.
        source: The rank of a worker that has the snapshot.
        receivers: The ranks of the workers that receive it.
    """

    epoch: int
    rank: int
    addresses: tuple[str, ...]
    coordinator: str
    step: int | None
    source: int
    receivers: tuple[int, ...]

    @property
    def num_workers(self) -> int:
        """The number of workers in the membership epoch."""
        return len(self.addresses)


class Link:
    """The connection of this worker to its launcher, which decides which workers train together at any time.

    One thread receives the launcher's commands, one sends heartbeats. When this worker must leave its epoch, a third
    thread shuts down the connections of Gloo repeatedly until the main thread has left the epoch, so that every wait of
    the main thread for other workers fails.

    Args:
        channel: The socket to the launcher.
        heartbeat_seconds: The launcher kills this worker if it receives no heartbeat for this long.

    Attributes:
        phases: The phases of the current change of the workers, as this worker sees them.
        sockets: The sockets of the collectives.
    """

    def __init__(self, channel: LauncherChannel, heartbeat_seconds: float) -> None:
        self._channel = channel
        self._interval = min(_LONGEST_INTERVAL_SECONDS, heartbeat_seconds / 4)
        self._changed = threading.Condition()
        self._place: Place | None = None  # the place that the launcher has assigned since the last arrival
        self._has_ended = False
        self._must_leave = False
        self._is_inside = False
        self._is_joining = False
        self._here: Place | None = None
        self._held: set[int] = set()  # the epochs whose abandoned work still runs
        self.phases = Phases()
        self.sockets = recovery.CollectiveSockets()
        channel.receive_by(self._receive)
        start(
            threading.Thread(target=self._beat, name="mirrored-elastic-heartbeat", daemon=True),
            threading.Thread(target=self._interrupt, name="mirrored-elastic-interrupts", daemon=True),
        )

    # Messages of the main thread

    def arrive(self, snapshots: Sequence[int], description: Mapping[str, str] | None = None) -> Place:
        """Tells the launcher that this worker is ready, and waits for its role in the next set of workers.

        Args:
            snapshots: The steps of the snapshots that this worker has.
            description: What must be equal on all workers; given by a new process, which the launcher may refuse.
        """
        with self._changed:
            self._must_leave = self._is_inside = False
            self._place = None
        self.phases.begin("waiting")
        more = {} if description is None else {"description": dict(description)}
        self._send(kind="arrived", snapshots=list(snapshots), holds=sorted(self._held), **more)
        place = self._take_place()
        self.phases.begin("connecting")
        return place

    def _take_place(self) -> Place:
        with self._changed:
            self._changed.wait_for(lambda: self._place is not None)
            assert self._place is not None
            self._here = here = self._place
            self._is_inside = self._is_joining = True
            self._changed.notify_all()  # it may have to leave already
            return here

    def joined(self) -> None:
        """Records that this worker has joined its membership epoch; sends the port for collectives to the launcher."""
        self._is_joining = False
        if self.sockets.own is not None:
            self._send(kind="port", port=self.sockets.own)

    def hold(self, epoch: int) -> Callable[[], None]:
        """Records that this worker still uses the coordination service of a membership epoch.

        The worker has left or is leaving the epoch. The next `arrive` tells the launcher, which then keeps the service.

        Returns:
            A function that tells the launcher that the work has ended. It can be called in any thread.
        """
        self._held.add(epoch)

        def release() -> None:
            self._held.discard(epoch)
            self._send(kind="released", holds=sorted(self._held))

        return release

    def must_restart(self, reason: str) -> None:
        """Tells the launcher that all processes must restart, as this process cannot leave its membership epoch."""
        self._send(kind="restarts", reason=reason)

    def report_snapshot(self, step: int) -> None:
        """Tells the launcher that this worker has a complete snapshot of a step.

        Context: any thread.
        """
        self._send(kind="snapshot", step=step)

    def report_first_step(self) -> None:
        """Tells the launcher that the first step after a membership change has ended, and how long each phase took."""
        phases, programs = self.phases.end()
        self._send(kind="stepped", phases=phases, programs=programs)

    def finish(self) -> None:
        """Tells the launcher that the training function has returned, and waits until all workers have reported this.

        Raises:
            WorkersChanged: A worker was lost before.
        """
        self._send(kind="done")
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._must_leave)
            if not self._has_ended:
                raise WorkersChanged

    def check(self) -> None:
        """Raises WorkersChanged if this worker must stop training, because the set of workers changes."""
        if self._must_leave:
            raise WorkersChanged

    def wait_for_leave_command(self, seconds: float, *, tell: bool) -> bool:
        """Waits for the launcher's command to leave the membership epoch, and returns whether the command came.

        Args:
            seconds: How long to wait.
            tell: Whether to tell the launcher that a collective has failed.
        """
        if tell and not self._must_leave:
            self._send(kind="suspected")
        with self._changed:
            return self._changed.wait_for(lambda: self._must_leave, seconds)

    def _send(self, **message: Any) -> None:
        here = self._here
        self._channel.send(f"{WORD} {json.dumps({'epoch': 0 if here is None else here.epoch, **message})}")

    # Threads

    def _receive(self, line: str) -> None:
        word, _, text = line.partition(" ")
        if word != WORD:
            return
        message = json.loads(text)
        kind = message.pop("kind")
        with self._changed:
            if kind == "begin":
                lists = {name: tuple(message[name]) for name in ("addresses", "receivers")}
                self._place = Place(**{**message, **lists})
            # Both commands may arrive before the main thread takes its place: the launcher sends "leave" at once if it
            # finds that another member is lost.
            elif kind == "leave" and self._place is not None and message["epoch"] == self._place.epoch:
                self.sockets.others = frozenset(message["ports"])
                self._must_leave = True
                self.phases.begin("interrupting")
            elif kind == "end":
                self._has_ended = True
            self._changed.notify_all()

    def _beat(self) -> None:
        """Sends heartbeats with the times of a short computation and short sleeps, which reveal a slow process."""
        data = bytes(_PROBE_BYTES)
        while True:
            began = time.perf_counter()
            zlib.crc32(data)
            worked = time.perf_counter()
            for _ in range(_PROBE_SLEEPS):
                time.sleep(_PROBE_SLEEP_SECONDS)
            self._send(kind="beat", probes={"work": worked - began, "sleep": time.perf_counter() - worked})
            time.sleep(max(0.0, self._interval - _PROBE_SLEEPS * _PROBE_SLEEP_SECONDS))

    def _interrupt(self) -> None:
        """Ends blocking waits of the main thread with an error when this worker must leave its membership epoch."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._must_leave and self._is_inside)
            here = self._here
            if self._is_joining and here is not None:
                recovery.release_waiters(here.rank, here.num_workers)
            self.sockets.shut_down()
            time.sleep(_REPEAT_SECONDS)


def cluster_description(place: Place) -> str:
    """Returns the ``TF_CONFIG`` of one worker in a membership epoch: the addresses of all workers, and its rank."""
    cluster = {"cluster": {"worker": list(place.addresses)}, "task": {"type": "worker", "index": place.rank}}
    return json.dumps(cluster)


def is_elastic_worker() -> bool:
    """Returns whether `mirrored run --elastic` has started this process."""
    return ELASTIC.is_set()
