"""Explores the protocol of elastic jobs: the membership state machine with a model of the workers.

The model has all that matters for correctness: messages between launcher and workers that arrive in any order between
different workers, collectives that complete only if all members of an epoch take part, snapshots that complete some
time after their step, and kills at any moment. Every state is checked; a walk must reach the end of training.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from mirrored.elastic.membership import Begin, Command, End, Epoch, Fail, Leave, Membership

STEPS, EVERY, AHEAD = 6, 2, 2


class Worker:
    """A worker process: an epoch that it is in, how far its Python code and its devices are, and its snapshots.

    `state` is the history of the training state: the steps that it consists of. Exactly-once means that it is
    ``(1, 2, ..., n)`` after step n.
    """

    def __init__(self, key):
        self.key = key
        self.phase = "starting"  # then: waiting, receiving, training, done, ended
        self.epoch: Epoch | None = None
        self.dispatched = 0
        self.state: tuple[int, ...] = ()
        self.pending: list[tuple[int, ...]] = []
        self.snapshots: dict[int, tuple[int, ...]] = {}
        self.inbox: list[Command] = []


class World:
    def __init__(self, workers, kills, joins, minimum=1):
        self.membership = Membership(workers, minimum, limit=100)
        self.workers = {(index, 0): Worker((index, 0)) for index in range(workers)}
        self.outbox: list[tuple] = []  # messages to the launcher; per worker in order
        self.kills, self.joins = kills, joins
        self.committed = self.serial = 0
        self.newest: Epoch | None = None
        self.holders: set = set()  # the workers that have the committed step
        self.finished: list[tuple[int, ...]] = []
        self.failed: set[int] = set()  # the epochs in which a worker was lost or suspected

    # What may happen next

    def actions(self):
        found = [(kind, key) for key, one in self.workers.items() for kind in self.actions_of(one)]
        if self.outbox:
            found += [("deliver", key) for key in {message[1] for message in self.outbox}]
        # The launcher replaces lost workers; without the joins of the plan only those that the next epoch needs.
        starting = sum(one.phase == "starting" or not one.epoch for one in self.workers.values())
        is_short = not self.membership.is_running and self.membership.missing and not found
        if (self.joins and len(self.workers) < 4) or (is_short and not self.membership.has_ended and starting < 4):
            found.append(("join", None))
        return found

    def actions_of(self, one):
        trains = one.phase == "training"
        possible = {
            "receive": bool(one.inbox),
            "start": one.phase == "starting",
            "dispatch": trains and one.dispatched < min(STEPS, len(one.state) + AHEAD),
            "finish": trains and len(one.state) == STEPS,
            "snapshot": bool(one.pending),
            "compute": self.can_compute(one),
            "kill": bool(self.kills),
            "error": trains and self.has_lost_a_member(one),
        }
        return [kind for kind, is_possible in possible.items() if is_possible]

    def peers(self, one):
        """The other members that run in the same epoch; None for a member that is lost or elsewhere."""
        for key in one.epoch.members:
            other = self.workers.get(key)
            yield (
                other
                if other is not None and other.epoch is one.epoch and other.phase in ("training", "done")
                else None
            )

    def can_compute(self, one):
        """A collective completes if all members have dispatched it."""
        if one.phase != "training" or one.dispatched == len(one.state):
            return False
        step = len(one.state) + 1
        return all(other is not None and other.dispatched >= step for other in self.peers(one))

    def has_lost_a_member(self, one):
        return any(other is None for other in self.peers(one))

    # The transitions

    def act(self, action):
        kind, key = action
        getattr(self, f"_{kind}")(key)
        self.check()

    def _start(self, key):
        self.workers[key].phase = "waiting"
        self.outbox.append(("arrived", key, ()))

    def _receive(self, key):
        one = self.workers[key]
        command = one.inbox.pop(0)
        if isinstance(command, Leave):
            one.phase, one.epoch = "waiting", None
            for state in one.pending:  # computed before; the worker waits for the copies to this host
                one.snapshots = {len(state): state}
            one.pending, one.dispatched, one.state = [], 0, ()
            self.outbox.append(("arrived", key, tuple(one.snapshots)))
        elif isinstance(command, Begin):
            self._enter(one, command.epoch)
        elif isinstance(command, End):
            one.phase = "ended"
            self.finished.append(one.state)

    def _enter(self, one, epoch):
        if epoch.step is not None and epoch.members.index(one.key) in epoch.receivers:
            source = self.workers.get(epoch.members[epoch.source])
            if source is None or epoch.step not in source.snapshots:  # the source was lost: the broadcast fails
                one.epoch, one.phase, one.dispatched, one.state = epoch, "receiving", 0, ()
                self.outbox.append(("suspected", one.key, epoch.number))
                return
            one.snapshots[epoch.step] = source.snapshots[epoch.step]
        one.epoch, one.phase = epoch, "training"
        one.state = () if epoch.step is None else one.snapshots[epoch.step]
        one.dispatched = len(one.state)
        one.snapshots = {step: kept for step, kept in one.snapshots.items() if step == epoch.step}
        if epoch.step is not None:
            self.outbox.append(("snapshot_completed", one.key, epoch.number, epoch.step))

    def _dispatch(self, key):
        self.workers[key].dispatched += 1

    def _compute(self, key):
        one = self.workers[key]
        step = len(one.state) + 1
        for other in self.peers(one):
            # The others are at most ahead, with the same history: the sum is over the same step of the same state.
            ours = one.state
            theirs = other.state[: step - 1]
            assert len(other.state) < step - 1 or theirs == ours, "a collective has mixed different histories"
        one.state = (*one.state, step)
        if step % EVERY == 0:
            one.pending.append(one.state)

    def _snapshot(self, key):
        one = self.workers[key]
        state = one.pending.pop(0)
        one.snapshots = {len(state): state}  # only the newest is kept
        self.outbox.append(("snapshot_completed", key, one.epoch.number, len(state)))

    def _finish(self, key):
        one = self.workers[key]
        one.phase = "done"
        self.outbox.append(("done", key, one.epoch.number))

    def _error(self, key):
        one = self.workers[key]
        one.phase = "receiving"  # the error has reached the library, which waits for the launcher
        self.outbox.append(("suspected", key, one.epoch.number))

    def _kill(self, key):
        self.kills -= 1
        del self.workers[key]
        self.outbox = [message for message in self.outbox if message[1] != key or random.random() < 0.5]
        self.outbox.append(("lost", key))

    def _join(self, _):
        self.joins = max(0, self.joins - 1)
        used = {index for index, _ in self.workers}
        index = next(index for index in range(10) if index not in used)
        self.serial += 1
        serial = self.serial
        self.workers[index, serial] = Worker((index, serial))

    def _deliver(self, key):
        at = next(at for at, message in enumerate(self.outbox) if message[1] == key)
        name, worker, *rest = self.outbox.pop(at)
        if name in ("lost", "suspected") and self.membership.epoch is not None:
            self.failed.add(self.membership.epoch.number)
        commands = self.commands(name, worker, *rest)
        assert self.membership._unproductive <= len(self.failed), "one failure counts several times"
        for command in commands:
            assert not isinstance(command, Fail), command
            if command.worker in self.workers:
                self.execute(command)

    def commands(self, name, worker, *rest):
        return getattr(self.membership, name)(worker, *rest) or []

    def execute(self, command):
        self.workers[command.worker].inbox.append(command)

    # What must hold in every state

    def check(self):
        training = [one for one in self.workers.values() if one.phase == "training"]
        for one in self.workers.values():
            assert one.state == tuple(range(1, len(one.state) + 1)), "a step was skipped or applied twice"
            assert all(len(state) == step for step, state in one.snapshots.items())
        by_epoch = {}
        for one in training:
            by_epoch.setdefault(one.epoch.number, set()).add(one.epoch.members)
        assert all(len(members) == 1 for members in by_epoch.values()), "split brain: two epochs with one number"
        newest = self.membership.epoch
        if newest is not self.newest:
            assert not self.holders & set(newest.members) or newest.step >= self.committed, "a committed step was lost"
            self.newest = newest
        if self.membership.is_running and (self.membership.committed or 0) > self.committed:
            self.committed = self.membership.committed
            self.holders = {key for key, one in self.workers.items() if self.committed in one.snapshots}

    @property
    def is_over(self):
        # The launcher ends workers that come too late to be members.
        members = [one for key, one in self.workers.items() if self.newest is not None and key in self.newest.members]
        return self.membership.has_ended and all(one.phase == "ended" for one in members)


class RestartingWorld(World):
    """A job whose processes cannot leave an epoch: the launcher ends them, and new ones continue from a shared copy."""

    def __init__(self, workers, kills, joins):
        super().__init__(workers, kills, 0)
        self.membership.require_all()
        self.copy: tuple[int, ...] | None = None

    def _start(self, key):
        one = self.workers[key]
        one.phase = "waiting"
        one.snapshots = {} if self.copy is None else {len(self.copy): self.copy}
        self.outbox.append(("arrived", key, tuple(one.snapshots)))

    def _snapshot(self, key):
        one = self.workers[key]
        if one.epoch.members.index(key) == 0:  # a kill before this leaves the previous copy
            self.copy = one.pending[0]
        super()._snapshot(key)

    def commands(self, name, worker, *rest):
        if name == "ended":
            return self.membership.lost(worker, is_failure=False)
        return super().commands(name, worker, *rest)

    def execute(self, command):
        if isinstance(command, Leave):
            del self.workers[command.worker]
            self.outbox = [message for message in self.outbox if message[1] != command.worker]
            self.outbox.append(("ended", command.worker))
        else:
            super().execute(command)

    def check(self):
        newest = self.membership.epoch
        if newest is not self.newest and self.committed:
            assert newest.step is not None, "all workers were lost, and the copy with them"
            assert newest.step >= self.committed, "a committed step was lost"
        super().check()


def walk(world, moments, limit=4000):
    for _ in range(limit):
        if world.is_over:
            return
        actions = world.actions()
        assert actions, "the job is stuck"
        # Kills and joins are rarer than other actions, so that they fall into all parts of the run.
        weights = [0.15 if kind in ("kill", "join") else 1.0 for kind, _ in actions]
        world.act(moments.choices(actions, weights)[0])
    raise AssertionError("no progress")


def explore(seeds: range, kind: type[World] = World) -> int:
    """Walks once per seed, and returns how many of the walks ended with a result."""
    finished = 0
    for seed in seeds:
        moments = random.Random(seed)
        random.seed(seed)
        world = kind(moments.randint(1, 4), kills=moments.randint(0, 4), joins=moments.randint(0, 3))
        walk(world, moments)
        if world.finished:
            assert set(world.finished) == {tuple(range(1, STEPS + 1))}, f"seed {seed}"
            finished += 1
    return finished


@pytest.mark.long
def test_a_thousand_interleavings_with_kills_and_joins():
    assert explore(range(1000)) > 900


@pytest.mark.long
def test_a_thousand_interleavings_of_a_job_that_restarts_its_processes():
    assert explore(range(1000), RestartingWorld) > 900


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_more_interleavings():
    assert explore(range(1000, 11_000)) > 9000


class _Broken(Membership):
    """A membership that lets each worker continue from its own newest snapshot."""

    def _begin_if_complete(self):
        waiting = dict(self._waiting)
        commands = super()._begin_if_complete()
        return [
            Begin(one.worker, dataclasses.replace(one.epoch, step=max(waiting[one.worker], default=None), receivers=()))
            for one in commands
        ]


class _Stubborn(Membership):
    """A membership that waits for lost workers."""

    def lost(self, worker, *, is_failure=True):
        return []


class _Lonely(Membership):
    """A membership that lets only the workers with a snapshot continue in the common epoch."""

    def _begin_if_complete(self):
        commands = super()._begin_if_complete()
        return [one for one in commands if one.epoch.members.index(one.worker) not in one.epoch.receivers]


class _Late(RestartingWorld):
    """A job in which the copy is written after the launcher has learned of the snapshot."""

    def _snapshot(self, key):
        before = self.copy
        super()._snapshot(key)
        self.copy = before


def test_the_model_sees_a_copy_that_is_written_too_late():
    with pytest.raises(AssertionError, match="a committed step was lost|and the copy with them"):
        explore(range(300), _Late)


class _Suspicious(Membership):
    """A membership that counts each event of a failure as a failure."""

    def _failed(self):
        self._is_counted = False
        return super()._failed()


@pytest.mark.parametrize("broken", [_Broken, _Stubborn, _Lonely, _Suspicious])
def test_the_model_sees_a_wrong_protocol(broken, monkeypatch):
    monkeypatch.setattr(f"{__name__}.Membership", broken)
    with pytest.raises((AssertionError, KeyError)):
        explore(range(300))
