"""The main loop of an elastic job's worker; within one membership epoch, the set of workers does not change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from mirrored._jax import distributed, recovery
from mirrored.elastic.copies import SharedCopies, why_restart
from mirrored.elastic.equality import description
from mirrored.elastic.exceptions import chain, drop_frames
from mirrored.elastic.link import Link, Place, WorkersChanged, cluster_description
from mirrored.elastic.snapshots import Snapshots, share
from mirrored.elastic.warming import warm_up
from mirrored.errors import AbsentWorkerError, LostStateError
from mirrored.runtime import hooks
from mirrored.settings import HEARTBEAT_SECONDS, RESTART
from mirrored.watchdog.fail_fast_exit import is_lost_peer

T = TypeVar("T")

_CONNECT_SECONDS: Final = 20
_POLL_SECONDS: Final = 0.003
_DELETED: Final = "Array has been deleted"
# How long an exception without a known cause waits for the news that a worker was lost.
_NEWS_SECONDS: Final = 0.3
_MARGIN_SECONDS: Final = 2.0


class Worker:
    """The main loop of a worker: joins a membership epoch, calls the training function, leaves, and joins the next."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._snapshots = Snapshots(self._completed, self._failed_by_membership_change)
        self._copies = SharedCopies.of_job()
        self._writes_copies = False
        copy = self._copies.newest()
        if copy is not None:
            self._snapshots.put(*copy)
        self._joining: recovery.Abandonable | None = None  # the work that makes this process a member of an epoch

    def run(self, train: Callable[[Place, Snapshots], T]) -> T:
        """Calls the training function once per membership epoch until it returns on all workers; returns its result."""
        distributed.interrupt_waits_by(self._link.check)
        hooks.connect()  # The bridges of Keras and Flax note state, too, also of layers made before the first scope.
        distributed.begin_jobs()
        own: dict[str, str] | None = description()
        if RESTART.read() and not self._snapshots.steps:  # with a copy, all processes restart and wait for each other
            warm_up()
        while True:
            place, own = self._link.arrive(self._snapshots.steps, own), None
            try:
                self._join(place)
                self._link.phases.begin("creating")
                result = train(place, self._snapshots)
                self._link.finish()
                return result
            except BaseException as error:
                if not self._is_change(error):
                    _name_deleted(error, place)
                    raise
                drop_frames(error)
            self._leave(place)

    def _completed(self, step: int) -> None:
        """Copies a completed snapshot to shared memory and reports it to the launcher; runs in a background thread."""
        if self._writes_copies:
            self._copies.write(step, self._snapshots[step])
        self._link.report_snapshot(step)

    def _failed_by_membership_change(self, _: Exception) -> bool:
        """Returns whether a snapshot failed because the set of workers changes; runs in a background thread."""
        return self._link.wait_for_leave_command(HEARTBEAT_SECONDS.read() + _MARGIN_SECONDS, tell=False)

    # Joining

    def _join(self, place: Place) -> None:
        """Makes this process a member of a membership epoch; blocking calls run in a thread that can be abandoned."""
        os.environ["TF_CONFIG"] = cluster_description(place)
        self._link.sockets.own = None
        if place.num_workers > 1:
            self._joining = recovery.Abandonable(lambda joining: self._connect(joining, place))
            end = time.monotonic() + _CONNECT_SECONDS
            while not self._joining.wait(_POLL_SECONDS):
                self._link.check()
                if not distributed.is_connected() and time.monotonic() > end:
                    raise _not_connected_error(place)
            joining, self._joining = self._joining, None
            if joining.error is not None:
                raise joining.error
        self._link.joined()
        reason = why_restart(place.num_workers)
        if reason is not None:
            self._link.must_restart(reason)
        self._writes_copies = reason is not None and place.rank == 0
        if place.step is not None:
            self._snapshots.forget_all_but(place.step)

    def _connect(self, joining: recovery.Abandonable, place: Place) -> None:
        address, count, rank = place.coordinator, place.num_workers, place.rank
        client = recovery.connect(address, rank, HEARTBEAT_SECONDS.read())
        with self._link.sockets.observe():
            joining.enter(lambda: recovery.adopt(client, address, count, rank), must_finish=True)
            self._link.phases.begin("making backends")
            devices = recovery.make_backend()
        joining.enter(self._link.joined)
        self._link.phases.begin("meeting")
        # The first collective connects all processes, which takes until a timeout if one of them is lost.
        recovery.sum_of_all(np.zeros((), np.uint32), devices, rank)
        if place.step is not None and place.receivers:
            self._link.phases.begin("receiving")
            own = None if rank in place.receivers else self._snapshots[place.step]
            received = share(own, place, lambda part: recovery.sum_of_all(part, devices, rank))
            joining.enter(lambda: self._snapshots.put(place.step or 0, received))

    # Leaving

    def _is_change(self, error: BaseException) -> bool:
        """Returns whether an exception is caused by a change of the set of workers, not by the program."""
        if isinstance(error, WorkersChanged):
            return True
        if not isinstance(error, Exception):
            return False
        # The collective may fail long before the launcher notices that a worker is lost, at worst by its heartbeat.
        if any(_is_of_collective(one) for one in chain(error)):
            return self._link.wait_for_leave_command(HEARTBEAT_SECONDS.read() + _MARGIN_SECONDS, tell=True)
        return self._link.wait_for_leave_command(_NEWS_SECONDS, tell=False)

    def _leave(self, place: Place) -> None:
        """Frees a membership epoch's resources: threads, arrays, programs, backends and coordination client."""
        joining, self._joining = self._joining, None
        if joining is not None:
            joining.abandon()
        phases = self._link.phases
        phases.begin("quiescing")
        distributed.reset_for_another_job()
        phases.begin("settling")
        if joining is None:
            self._snapshots.wait()
            for array in recovery.live_arrays():
                array.delete()
        phases.begin("clearing")
        # A backend that waits for a lost worker can be destroyed only after the timeout of its wait.
        client = recovery.leave(None if joining is None else joining.keep)
        if joining is not None:
            release = self._link.hold(place.epoch)
            joining.then(lambda: recovery.disconnect(client) and release())
        elif not recovery.disconnect(client):
            self._link.hold(place.epoch)


def _is_of_collective(error: BaseException) -> bool:
    return is_lost_peer(error) or isinstance(error, (AbsentWorkerError, LostStateError))


def _name_deleted(error: BaseException, place: Place) -> None:
    """Adds a note to JAX's error for a deleted array: the array was created before the workers changed."""
    if place.epoch > 1 and isinstance(error, RuntimeError) and _DELETED in str(error):
        error.add_note(
            f"mirrored: the array was created before the workers changed (this is epoch {place.epoch}); arrays of JAX "
            "belong to one call of the training function: create them in it, or keep NumPy arrays outside"
        )


def _not_connected_error(place: Place) -> AbsentWorkerError:
    return AbsentWorkerError(
        "elastic.run",
        found=f"not all {place.num_workers} workers of epoch {place.epoch} have connected to {place.coordinator} after "
        f"{_CONNECT_SECONDS} s",
        rule="all workers must connect before an epoch begins",
        remedy="none is needed: the workers form another epoch",
    )
