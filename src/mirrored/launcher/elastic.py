"""Supervises an elastic job: replaces lost workers, and regroups the workers whenever one is lost or joins."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from typing import Any, Final

from mirrored._jax import recovery
from mirrored.elastic import copies
from mirrored.elastic.equality import refusal
from mirrored.elastic.membership import Begin, Command, End, Epoch, Fail, Leave, Membership, WorkerKey
from mirrored.launcher.environment import worker_environment
from mirrored.launcher.events import EventLog
from mirrored.launcher.job import free_ports
from mirrored.launcher.members import LateWorkers, Member, wait_for_end, words_for_change, words_for_returned
from mirrored.launcher.reaper_client import ReaperClient
from mirrored.launcher.replacements import STILLBORN_LIMIT, Replacements
from mirrored.launcher.slow_workers import SlowWorkers
from mirrored.launcher.supervisor import Failure, Supervisor
from mirrored.launcher.worker import LOST_PEER, Worker, shell_code, words_for
from mirrored.settings import COPY_FDS, HEARTBEAT_SECONDS, RENDEZVOUS_SECONDS

# How long the other workers may run on after one has ended the program with status 0 inside of the training function.
_EARLY_SECONDS: Final = 5.0
# How long the launcher waits, after the first training functions have returned, before it names the other workers.
_RETURNED_SECONDS: Final = 10.0
# How long a member may take to leave its epoch: it may be compiling, or computing in Python.
_LEAVING_SECONDS: Final = 120.0


class ElasticSupervisor(Supervisor):
    """A supervisor whose job continues without a restart when a worker is lost or joins."""

    def _run(self, reaper: ReaperClient) -> int:
        self._reaper = reaper
        self._heartbeat_seconds = HEARTBEAT_SECONDS.read()
        self._membership = Membership(self._job.workers, self._job.min_workers)
        self._members: dict[WorkerKey, Member] = {}
        self._serial: dict[int, int] = {}  # the number of processes that each worker has had, by index
        self._replacements = Replacements()
        self._services: dict[int, Any] = {}  # the coordination services by epoch
        self._cause = ""
        self._changing_since: float | None = None
        self._returned_at: dict[WorkerKey, float] = {}  # when the training function has returned, in this epoch
        self._events = EventLog(self._job.log_directory, self._output.say)
        self._addresses = self._coordination.meet(0, self._interrupted) or []
        self._copies = copies.create()
        self._slow = SlowWorkers()
        self._late = LateWorkers(RENDEZVOUS_SECONDS.read(), self._output.say)
        self._restart_reason: str | None = None  # why all processes restart after a failure; None if they do not
        self._is_restartable = False  # whether the program has no elastic function
        failure: Failure | None = None
        try:
            for index in range(self._job.workers):
                self._start(index)
            failure = self._supervise()
            if self._is_restartable:
                failure = self._watch()
        finally:
            self._end_all(reaper)
            self._events.write("ended", reason=None if failure is None else failure.reason)
            self._events.close()
            for descriptor in self._copies:
                os.close(descriptor)
        if self._is_restartable:
            self._job = dataclasses.replace(self._job, elastic=False)
            return self._restart_after(failure, reaper)
        if failure is not None:
            self._output.say(failure.reason)
        return 0 if failure is None else failure.code

    def _start(self, index: int) -> None:
        serial = self._serial[index] = self._serial.get(index, -1) + 1
        # Before the first epoch it is not known whether the program is elastic; if it is, it overwrites TF_CONFIG.
        addresses = self._addresses if self._membership.epoch is None else []
        environment = worker_environment(self._job, index, addresses, secret=self._coordination.secret, restart=serial)
        if len(addresses) < 2:
            environment.pop("TF_CONFIG", None)
        if self._copies:
            environment[COPY_FDS.name] = ",".join(map(str, self._copies))
        worker = Worker(self._job, index, environment, self._copies)
        self._reaper.add(worker.group)
        self._workers.append(worker)
        self._members[index, serial] = Member(worker, time.monotonic())
        self._events.write("started", worker=index, process=worker.process.pid)

    def _supervise(self) -> Failure | None:
        """Runs the job until its workers have ended; returns the failure that ended the job, or None."""
        while True:
            self._wait_for_news()
            asking = []
            for key, member in list(self._members.items()):
                member.worker.pump(self._output)
                if member.worker.listen():
                    asking.append(member.worker)
                failure = self._take_messages(key, member)
                if failure is not None:
                    return failure
            if self._is_restartable:
                return None
            failure = self._signalled() or self._failed_program(asking) or self._remove_lost() or self._kill_silent()
            if failure is not None:
                return failure
            self._replace_lost()
            if not self._members or (self._membership.has_ended and self._all_succeeded()):
                return None if self._membership.has_ended else self._without_workers()
            self._say_who_has_returned()

    def _without_workers(self) -> Failure:
        if self._terminated_at is not None:
            return Failure("all workers ended after SIGTERM, before the training was finished", 128 + signal.SIGTERM)
        return Failure(f"{self._cause}; no worker is left" if self._cause else "all workers have ended", 1)

    def _say_who_has_returned(self) -> None:
        """Prints once per membership epoch that some workers' training functions returned while others still run."""
        if not self._returned_at or self._membership.has_ended:
            return
        if time.monotonic() - max(self._returned_at.values()) < _RETURNED_SECONDS:
            return
        members = set() if self._membership.epoch is None else set(self._membership.epoch.members)
        self._output.say(words_for_returned(self._returned_at.keys(), members - self._returned_at.keys()))
        self._returned_at.clear()

    def _all_succeeded(self) -> bool:
        epoch = self._membership.epoch
        ours = [one for key, one in self._members.items() if epoch is not None and key in epoch.members]
        return self._output.has_room and all(one.worker.code == 0 for one in ours)

    _has_left_early = False
    _has_lost_member = False  # whether a member of the newest epoch has failed

    # Messages

    def _take_messages(self, key: WorkerKey, member: Member) -> Failure | None:
        messages, member.worker.messages = member.worker.messages, []
        for text in messages:
            message = json.loads(text)
            member.beat_at = time.monotonic()
            why = self._refusal(member, message)
            if why is not None:
                return self._refuse(key, member, why)
            failure = self._execute(self._commands(key, member, message))
            if failure is not None:
                return failure
        return None

    def _refusal(self, member: Member, message: dict[str, Any]) -> str | None:
        """Returns the difference from other workers that prevents a new worker from joining; None if it can join."""
        own = message.get("description")
        if own is None:
            return None
        member.description = own
        others = (one.description for one in self._members.values() if one.has_arrived and one is not member)
        expected = next((one for one in others if one is not None), None)
        return None if expected is None else refusal(expected, own)

    def _refuse(self, key: WorkerKey, member: Member, why: str) -> Failure | None:
        """Ends a worker whose versions, flags or CPU differ from the other workers', and stops replacing the worker."""
        self._forget(key, member, "is refused")
        self._replacements.give_up(key[0])
        said = (
            f"worker {key[0]} is refused: {why}. All workers of an elastic job must have the same versions, flags, "
            "CPU and number of threads, so that results do not depend on which workers compute them"
        )
        if (failure := self._failure_without(said, 1)) is None:
            self._output.say(f"{said}; it is not replaced again")
        return failure

    def _commands(self, key: WorkerKey, member: Member, message: dict[str, Any]) -> list[Command]:
        kind, epoch = message["kind"], message["epoch"]
        match kind:
            case "arrived":
                member.has_arrived, member.has_stepped, member.port = True, False, None
                member.holds = frozenset(message["holds"])
                self._replacements.arrived(key[0])
                self._events.write("arrived", worker=key[0], epoch=epoch, snapshots=message["snapshots"])
                return self._membership.arrived(key, message["snapshots"])
            case "suspected":
                self._events.write("suspected", worker=key[0], epoch=epoch)
                if self._restart_reason is not None:  # all workers are to be ended: the cause would be lost
                    wait_for_end(one.worker for one in self._members.values())
                self._record_cause(f"a collective has failed on worker {key[0]}")
                return self._membership.suspected(key, epoch)
            case "snapshot":
                return self._record_joining(self._membership.snapshot_completed(key, epoch, message["step"]))
            case "done":
                self._returned_at[key] = time.monotonic()
                return self._membership.done(key, epoch)
        self._handle_report(key, member, message)
        return []

    def _handle_report(self, key: WorkerKey, member: Member, message: dict[str, Any]) -> None:
        """Handles a worker's message that does not change which workers are members of the job."""
        match message["kind"]:
            case "stepped":
                member.has_stepped = True
                more = {name: message[name] for name in ("phases", "programs")}
                self._events.write("stepped", worker=key[0], epoch=message["epoch"], **more)
            case "released":
                member.holds = frozenset(message["holds"])
                self._end_services()
            case "beat":
                self._say_if_slow(key, message["probes"])
            case "restarts":
                self._restart_processes(message["reason"])
            case "restartable":
                self._restart_all_after_failures()
            case "port":
                member.port = message["port"]

    def _say_if_slow(self, key: WorkerKey, probes: dict[str, float]) -> None:
        factor = self._slow.report(key, probes)
        if factor is not None:
            self._output.say(
                f"worker {key[0]} runs {factor:.0f} times slower than the others, and every step waits for it: check "
                "the load of its processors, and whether it is stopped again and again"
            )

    def _restart_processes(self, reason: str) -> None:
        """Makes later failures restart the processes of all workers, because they cannot regroup without a restart."""
        if self._restart_reason is None and (self._job.max_workers or 0) > self._job.workers:
            self._output.say(f"--max-workers has no effect: no worker can join, because {reason}")
        self._restart_reason = reason
        self._membership.require_all()
        for (index, _), member in self._members.items():
            if index >= self._job.workers:
                member.end()

    def _restart_all_after_failures(self) -> None:
        """Makes every later failure restart all workers, because the program has no elastic training function."""
        if not self._is_restartable:
            self._is_restartable = True
            self._output.say(
                "the program has no function with mirrored.elastic.run: after a failure all workers restart from the "
                f"newest checkpoint, at most {self._job.max_restarts} times"
            )

    def _record_joining(self, commands: list[Command]) -> list[Command]:
        """Records joining workers as the cause of a membership change if there are `commands`; returns `commands`."""
        if commands:
            indices = ", ".join(str(key[0]) for key in self._membership.joining)
            self._record_cause(f"worker{'s' * (', ' in indices)} {indices} join{'s' * (', ' not in indices)}")
        return commands

    def _record_cause(self, cause: str) -> None:
        """Records why the set of workers changes, and when the change began."""
        if self._changing_since is None or not self._cause:
            self._changing_since = time.monotonic()
        if cause not in self._cause and not (self._cause and cause.startswith("a collective")):
            self._cause = f"{self._cause}, {cause}" if self._cause else cause

    # Commands

    def _execute(self, commands: list[Command]) -> Failure | None:
        beginning = [one for one in commands if isinstance(one, Begin)]
        if beginning:
            self._begin(beginning[0].epoch)
        # A worker that leaves its epoch shuts down its collectives' connections to these ports and to lost workers'.
        ports = [one.port for one in self._members.values() if one.port is not None]
        for command in commands:
            if isinstance(command, Leave) and self._restart_reason is not None:
                if command.worker in self._members:
                    self._members[command.worker].end()
            elif isinstance(command, Leave):
                epoch = self._membership.epoch
                assert epoch is not None
                self._events.write("leave", worker=command.worker[0], epoch=epoch.number)
                self._tell(command.worker, kind="leave", epoch=epoch.number, ports=[*ports, *self._lost_ports])
                self._leaving_since = time.monotonic()
            elif isinstance(command, End):
                self._tell(command.worker, kind="end")
            elif isinstance(command, Fail):
                return Failure(f"{self._cause}; {command.reason}", 1)
        return None

    _leaving_since = 0.0
    _lost_ports: tuple[int, ...] = ()

    def _begin(self, epoch: Epoch) -> None:
        """Starts the coordination service of a membership epoch, and tells the epoch's members to begin."""
        count = len(epoch.members)
        with free_ports(count) as ports:
            pass
        addresses = [f"127.0.0.1:{port}" for port in ports]
        if count > 1:
            self._services[epoch.number] = recovery.serve(addresses[0], count, self._heartbeat_seconds)
        self._end_services()
        self._lost_ports, self._has_lost_member = (), False
        self._returned_at.clear()
        workers = [index for index, _ in epoch.members]
        self._events.write("begin", epoch=epoch.number, workers=workers, step=epoch.step)
        for rank, key in enumerate(epoch.members):
            self._tell(
                key, kind="begin", epoch=epoch.number, rank=rank, addresses=addresses, coordinator=addresses[0],
                step=epoch.step, source=epoch.source, receivers=list(epoch.receivers),
            )  # fmt: skip
        if epoch.number > 1:
            self._say_change(epoch)

    def _end_services(self) -> None:
        """Ends the coordination services of earlier membership epochs that no running worker uses any more."""
        newest = 0 if self._membership.epoch is None else self._membership.epoch.number
        held = {number for one in self._members.values() for number in one.holds}
        for number in [one for one in self._services if one < newest and one not in held]:
            recovery.end_service(self._services.pop(number))

    def _say_change(self, epoch: Epoch) -> None:
        seconds = 0.0 if self._changing_since is None else time.monotonic() - self._changing_since
        self._output.say(words_for_change(self._cause, epoch, seconds, self._restart_reason))
        self._cause, self._changing_since = "", None

    def _tell(self, key: WorkerKey, **message: Any) -> None:
        member = self._members.get(key)
        if member is not None:
            member.worker.tell(json.dumps(message))

    # Failures

    def _failed_program(self, asking: list[Worker]) -> Failure | None:
        """Returns the first failure that a worker's own program caused, or None.

        Kills workers that failed only because they lost the connection to another worker.
        """
        for worker in asking:
            if worker.failing is not None and worker.failing[0] == LOST_PEER and not self._membership.has_ended:
                worker.let_go()
                worker.signal(signal.SIGKILL)
        blamable = self._blamable()
        for worker in asking:
            if worker not in blamable:
                worker.let_go()
        culprit = any(one.failing is not None and one.failing[0] != LOST_PEER for one in blamable)
        exited = any(one.code is not None and one.code > 0 and one.failing is None for one in blamable)
        return self._failed_among([one for one in asking if one in blamable]) if culprit or exited else None

    def _blamable(self) -> list[Worker]:
        epoch = self._membership.epoch
        if not self._membership.has_ended or epoch is None:
            return self._workers
        # A replacement that has not joined has no part in the results of a training that is finished.
        return [member.worker for key, member in self._members.items() if key in epoch.members]

    def _remove_lost(self) -> Failure | None:
        for key, member in list(self._members.items()):
            code = member.worker.code
            if code is None or (code == 0 and self._membership.has_ended):
                continue
            if code == 0:
                member.left_early_at = member.left_early_at or time.monotonic()
                self._has_left_early = True
                others_run = any(one.worker.code is None for one in self._members.values())
                if not others_run and not self._has_lost_member:
                    self._membership.has_ended = True
                    continue
                if others_run and time.monotonic() - member.left_early_at < _EARLY_SECONDS:
                    continue
            failure = self._remove(key, member, words_for(code))
            if failure is not None:
                return failure
        return None

    def _forget(self, key: WorkerKey, member: Member, how: str) -> None:
        """Ends the process of a worker, and removes the worker from the launcher's state."""
        member.worker.end(self._output)
        self._reaper.remove(member.worker.group)
        self._workers.remove(member.worker)
        del self._members[key]
        self._events.write("lost", worker=key[0], how=how)
        self._slow.forget(key)
        self._returned_at.pop(key, None)

    def _remove(self, key: WorkerKey, member: Member, how: str) -> Failure | None:
        member.worker.listen()
        failure = self._take_messages(key, member)
        if key not in self._members:  # it was refused
            return failure
        code = member.worker.code
        self._forget(key, member, how)
        if member.port is not None:
            self._lost_ports = (*self._lost_ports, member.port)
        if member.is_ended:
            return failure or self._execute(self._membership.lost(key, is_failure=False))
        epoch = self._membership.epoch
        is_member = epoch is None or key in epoch.members
        if self._membership.has_ended:
            return failure or (Failure(f"worker {key[0]} {how}", shell_code(code or 1)) if is_member else None)
        if not member.has_arrived and self._replacements.count_failed_start(key[0]):
            return self._give_up(key[0], how, code)
        self._has_lost_member = self._has_lost_member or (is_member and code != 0)
        self._record_cause(f"worker {key[0]} {how}")
        return failure or self._execute(self._membership.lost(key))

    def _give_up(self, index: int, how: str, code: int | None) -> Failure | None:
        """Stops replacing a worker; returns the job's failure if too few workers are left, otherwise None."""
        self._output.say(f"worker {index} {how} {STILLBORN_LIMIT} times before it could join; it is not replaced again")
        return self._failure_without(f"worker {index} {how}", shell_code(code or 1))

    def _failure_without(self, reason: str, code: int) -> Failure | None:
        """Returns a `Failure` if too few workers are left to continue the job; None otherwise."""
        arrived = sum(one.has_arrived for one in self._members.values())
        fewest = self._job.workers if self._needs_all() else self._job.min_workers
        return Failure(reason, code) if arrived < fewest else None

    def _needs_all(self) -> bool:
        """Returns whether training can begin only with all workers: at the first start, or if all processes restart."""
        return self._membership.epoch is None or self._restart_reason is not None

    def _kill_silent(self) -> Failure | None:
        """Kills unresponsive workers, and returns a `Failure` if the job cannot continue."""
        # While an epoch runs, no worker waits for others, and `missing` has no meaning.
        is_incomplete = not self._membership.is_running and self._membership.missing > 0
        is_awaited = is_incomplete and any(one.has_arrived for one in self._members.values())
        late = self._late.among(self._by_index(), is_awaited=is_awaited)
        for key, member in list(self._members.items()):
            if member.worker.code is not None or self._membership.has_ended:
                continue
            how = late.get(key[0]) if not member.has_arrived else self._why_stuck(key, member)
            if how is not None:
                member.worker.signal(signal.SIGKILL)
                member.worker.process.wait()
                failure = self._remove(key, member, f"{how} and was killed")
                if failure is not None:
                    return failure
        return None

    def _why_stuck(self, key: WorkerKey, member: Member) -> str | None:
        now = time.monotonic()
        if now - member.beat_at > self._heartbeat_seconds:
            return f"has sent no heartbeat for {self._heartbeat_seconds} s"
        patience = max(_LEAVING_SECONDS, self._heartbeat_seconds)
        is_stuck = key in self._membership.leaving and now - self._leaving_since > patience
        return f"did not leave its epoch for {patience:.0f} s" if is_stuck else None

    def _replace_lost(self) -> None:
        if self._membership.has_ended or self._terminated_at is not None or self._has_left_early:
            return
        if self._needs_all():
            fewest = most = self._job.workers
        else:
            fewest, most = self._job.min_workers, self._job.max_workers or self._job.workers
        for index in self._replacements.to_start(self._by_index(), fewest, most):
            self._start(index)

    def _by_index(self) -> dict[int, Member]:
        return {index: member for (index, _), member in self._members.items()}
