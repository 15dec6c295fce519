"""The membership of an elastic job: a state machine, without I/O, that decides which workers train together.

The launcher calls a method for each event (a worker has arrived, was lost, suspects a failure, has completed a
snapshot, is done), and executes the commands that it returns. `docs/design/elastic.md` describes the protocol, and
`tests/elastic/test_protocol.py` explores this class together with a model of the workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

WorkerKey = tuple[int, int]
"""A worker process: its worker index (0 to the maximum number of workers - 1), and how many processes it had before."""

UNPRODUCTIVE_LIMIT: Final = 5
"""The maximum number of failures in a row without a committed step in between; one more ends the job.

All that fails between the beginnings of two epochs counts as one failure.
"""


@dataclasses.dataclass(frozen=True)
class Epoch:
    """A membership epoch: a period in which a fixed set of workers trains, until a worker is lost or joins.

    Attributes:
        number: The number of the epoch, from 1.
        members: The workers by rank.
        step: The step of the snapshot from which all members continue: the newest that any of them has. A step is the
            number of commits of this job, not the checkpoint's counter: after `restore_latest` it begins at 0. It may
            be newer than the committed step, because the snapshots of one step are equal on all workers: they train in
            lock-step. None if no member has a snapshot.
        source: The rank of a member that has the snapshot.
        receivers: The ranks of the members that do not have it.
    """

    number: int
    members: tuple[WorkerKey, ...]
    step: int | None = None
    source: int = 0
    receivers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Leave:
    """Command: the worker leaves its membership epoch, and then reports (`arrived`) that it is ready for the next."""

    worker: WorkerKey


@dataclasses.dataclass(frozen=True)
class Begin:
    """Command: the worker becomes a member of a membership epoch."""

    worker: WorkerKey
    epoch: Epoch


@dataclasses.dataclass(frozen=True)
class End:
    """Command: the worker's `elastic.run` call returns, because the training function has returned on all workers."""

    worker: WorkerKey


@dataclasses.dataclass(frozen=True)
class Fail:
    """Command: the launcher ends all workers, because the job cannot continue."""

    reason: str


Command = Leave | Begin | End | Fail


class Membership:
    """The state of an elastic job: the current membership epoch, its members, and the workers that wait to join.

    Args:
        first: The number of workers with which the first epoch begins.
        minimum: The least number of workers of later epochs.
        limit: The maximum number of failures in a row without a committed step in between; one more ends the job.

    Attributes:
        epoch: The newest epoch; None before the first.
        is_running: Whether its members train. Otherwise the next epoch is being formed.
        has_ended: Whether the training function has returned on all workers, or the job has failed.
        committed: The newest step of which every member has had a complete snapshot, or one of a later step. (The
            method `Session.commit` ends a step; the step is committed only then.) Waiting workers join when it
            advances. None before the first.
    """

    def __init__(self, first: int, minimum: int = 1, limit: int = UNPRODUCTIVE_LIMIT) -> None:
        self._first, self._minimum, self._limit = first, minimum, limit
        self.epoch: Epoch | None = None
        self.is_running = self.has_ended = False
        self.committed: int | None = None
        self._alive: set[WorkerKey] = set()  # members of the newest epoch that were not lost
        self._waiting: dict[WorkerKey, frozenset[int]] = {}  # workers that have arrived, with their snapshots
        self._done: set[WorkerKey] = set()
        self._newest: dict[WorkerKey, int] = {}  # the newest snapshot of each member
        self._unproductive = 0
        self._is_counted = False  # whether a failure of the newest epoch has been counted
        self._committed_at_failure: int | None = None

    @property
    def leaving(self) -> frozenset[WorkerKey]:
        """The members that have not left the ended membership epoch yet; the next epoch begins after they leave."""
        return frozenset() if self.is_running else frozenset(self._alive - self._waiting.keys())

    @property
    def joining(self) -> list[WorkerKey]:
        """The workers that have arrived and are not members of the newest membership epoch."""
        return sorted(one for one in self._waiting if one not in self._alive)

    @property
    def missing(self) -> int:
        """The number of workers that must still arrive before the next membership epoch can begin."""
        return max(0, self._required - len(self._waiting))

    @property
    def _required(self) -> int:
        return self._first if self.epoch is None else self._minimum

    def arrived(self, worker: WorkerKey, snapshots: Sequence[int] = ()) -> list[Command]:
        """Handles the arrival of a worker that takes part in no epoch, and returns the commands to execute.

        While an epoch runs, a new process waits until the next step is committed, so that few steps have to be
        repeated.

        Args:
            worker: The worker.
            snapshots: The steps of the snapshots that it has.
        """
        if self.has_ended or (self.is_running and worker in self._alive):
            return []
        self._waiting[worker] = frozenset(snapshots)
        return self._begin_if_complete()

    def require_all(self) -> None:
        """Requires every later membership epoch to have at least as many workers as the first.

        The launcher calls this method when it decides to restart all processes after failures.
        """
        self._minimum = self._first

    def lost(self, worker: WorkerKey, *, is_failure: bool = True) -> list[Command]:
        """Handles the end of a worker's process; returns the commands to execute.

        The process can neither compute nor write any more.

        Args:
            worker: The worker.
            is_failure: Whether it has failed; otherwise the launcher has ended it, after the failure of another one.
        """
        self._waiting.pop(worker, None)
        if worker not in self._alive:
            return []
        self._alive.discard(worker)
        if self.has_ended:
            return []
        return [*(self._failed() if is_failure else ()), *self._begin_if_complete()]

    def suspected(self, worker: WorkerKey, epoch: int) -> list[Command]:
        """Handles a member's report of a failed collective or a failed join; returns the commands to execute.

        No worker is known to be lost at this time.
        """
        if not self._is_current(worker, epoch):
            return []
        return self._failed()

    def snapshot_completed(self, worker: WorkerKey, epoch: int, step: int) -> list[Command]:
        """Handles a member's report of a complete snapshot of a step; returns the commands to execute.

        If the report advances `committed` and other workers wait, all members leave the epoch, so that the workers can
        join.
        """
        if not self._is_current(worker, epoch):
            return []
        self._newest[worker] = max(step, self._newest.get(worker, step))
        before = self.committed
        if all(one in self._newest for one in self._alive):
            self.committed = max(min(self._newest[one] for one in self._alive), self.committed or 0)
        return self._reconfigure() if self._waiting and self.committed != before else []

    def done(self, worker: WorkerKey, epoch: int) -> list[Command]:
        """Handles the return of the training function on a member; returns the commands to execute.

        The member waits until the function has returned on all members.
        """
        if not self._is_current(worker, epoch):
            return []
        self._done.add(worker)
        if self._done != self._alive:
            return []
        self.has_ended = True
        return [End(one) for one in sorted(self._alive)]

    def _is_current(self, worker: WorkerKey, epoch: int) -> bool:
        """Returns whether `epoch` is the running membership epoch, and `worker` is one of its remaining members."""
        is_newest = self.epoch is not None and self.epoch.number == epoch
        return is_newest and self.is_running and not self.has_ended and worker in self._alive

    def _failed(self) -> list[Command]:
        """Counts a failure, at most once per membership epoch; returns commands that end the epoch or the whole job.

        One lost worker causes several events: the collectives of the others fail, and the launcher notices the end of
        the process, in any order. Further workers may be lost until the next epoch begins. All of that is one failure.
        """
        if self._is_counted:
            return []
        self._is_counted = True
        if self.committed != self._committed_at_failure:
            self._unproductive = 0
        self._committed_at_failure = self.committed
        self._unproductive += 1
        if self._unproductive > self._limit:
            self.has_ended = True
            after = "the start" if self.committed is None else f"step {self.committed}"
            return [Fail(f"{self._unproductive} failures in a row without progress after {after}")]
        return self._reconfigure() if self.is_running else []

    def _reconfigure(self) -> list[Command]:
        self.is_running = False
        self._done.clear()
        return [Leave(one) for one in sorted(self._alive)]

    def _begin_if_complete(self) -> list[Command]:
        if self.is_running or self.has_ended or self.leaving or self.missing:
            return []
        # Former members keep their order: rank 0, which writes checkpoints, changes only if that worker is lost.
        before = () if self.epoch is None else self.epoch.members
        members = (
            *(one for one in before if one in self._waiting),
            *sorted(one for one in self._waiting if one not in before),
        )
        newest = max((max(steps) for steps in self._waiting.values() if steps), default=None)
        has = [newest in self._waiting[one] for one in members]
        receivers = tuple(rank for rank, holds in enumerate(has) if not holds) if newest is not None else ()
        source = has.index(True) if newest is not None else 0
        number = 1 if self.epoch is None else self.epoch.number + 1
        self.epoch = Epoch(number, members, newest, source, receivers)
        self.is_running, self._is_counted = True, False
        self._alive = set(members)
        self._waiting.clear()
        if self.committed is not None and (newest or 0) < self.committed:
            self.committed = newest  # all workers that had it were lost
        self._newest = {one: newest for one, holds in zip(members, has, strict=True) if holds and newest is not None}
        return [Begin(one, self.epoch) for one in members]
