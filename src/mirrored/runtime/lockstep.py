"""Runs the replicas of a process in threads, one at a time, synchronised at collectives and `merge_call`."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from mirrored._jax import caches
from mirrored._jax.block_settings import block_settings, call_with_settings
from mirrored._jax.interrupts import ThreadSettings, adopt_thread_settings, capture_thread_settings
from mirrored._threads import Claim, place_of, runs_jax_or_debugger, start
from mirrored.errors import ContextError, MergeError
from mirrored.runtime.ambient import Ambient, entered
from mirrored.runtime.merge import Merge

# Runs local replicas in lock-step, in threads of which one runs at a time (except after an interrupt, see below).
#
# *Local* replicas are those that one `ReplicaRunner` executes: in an eager run those of this process, on all of its
# devices; in a compiled run those of one device (its virtual replicas); their trace is the program of every device.
#
# Each replica runs until it calls a merge, and waits there at a barrier. When all replicas have arrived, the merge runs
# once, in the thread that started them (called the driver here). Then the replicas continue in index order. If
# the merge raises an `Exception`, its assignments are undone, and every replica raises that exception object at its
# call of the merge. An exception that escapes from a replica's function ends the run: all other replicas are unwound
# (`_Unwind`), all threads are joined, and `LockStep.run` raises the exception. The `MergeError` for merges that do not
# match ends the run as well: it is raised in the driver, where no replica can catch it. `LockStep` serves eager code
# and tracing: the threads copy all of JAX's thread-local state, so several replicas can be traced into one program. A
# compiled run with one local replica has no threads (`ReplicaRunner.in_place`).
#
# Python raises KeyboardInterrupt in the main thread. That is normally the driver, which either waits for a replica or
# runs a merge. The interrupt ends the run. It does not stop the running replica: the driver waits until that replica
# reaches a merge or returns, unless three more interrupts end the wait (`_unwind`). During this wait and after it, two
# threads may run at once: the `finally` blocks of a replica that was waiting at a merge run beside the replica that is
# still running.
#
# A replica that waits for a lock which another replica holds at a merge waits forever. The driver cannot know that the
# replica waits for a lock (Python does not tell what a thread waits for), so it warns and waits on.

_MAX_INTERRUPTIONS: Final = 2
_BLOCKED_SECONDS: Final = 10.0
"""How long a replica may stay at one place before the driver warns."""
_log: Final = logging.getLogger("mirrored")


class _CurrentThread(threading.local):
    replica: _Replica | None = None


_current = _CurrentThread()
Carrier = Callable[[], Callable[[], None]]
_carriers: list[Carrier] = []


def carry(carrier: Carrier) -> None:
    """Registers a function that copies thread-local state from the thread that starts a run to the replica threads.

    Args:
        carrier: Captures the state. It is called in the thread that starts a run; the function that it returns is
            called first in each replica thread.
    """
    _carriers.append(carrier)


carry(caches.carry_tape_token)


class _Unwind(BaseException):
    """Exception that ends a replica's thread whose pending collective will not run. User code must not catch it."""


class _Replica:
    """One replica's thread, which takes turns with the thread that started it, through two queues."""

    def __init__(
        self,
        index: int,
        body: Callable[[], Any],
        context: Ambient,
        state: ThreadSettings,
        adopt: Sequence[Callable[[], None]],
    ) -> None:
        self.index = index
        self.merge: Merge | None = None
        self.payload: Any = None
        self.settings = block_settings()  # at the merge; a `with` block in the replica function may change them
        self.merge_result: Any = None
        self.merge_error: Exception | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._body = body
        self._context = context
        self._state = state
        self._adopt = adopt
        self._unwinding = False
        self._was_started = False
        self._claim = Claim()  # taken by the thread when it begins, or by the driver to prevent that
        # `SimpleQueue` is atomic: it is written in C. `threading.Semaphore` is written in Python, so an exception
        # such as Ctrl-C can interrupt it halfway.
        self._replica_turn: SimpleQueue[None] = SimpleQueue()
        self._driver_turn: SimpleQueue[None] = SimpleQueue()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._main,), name=f"replica-{index}", daemon=True)

    @staticmethod
    def start_all(replicas: Sequence[_Replica]) -> None:
        start(*(replica._thread for replica in replicas))
        for replica in replicas:
            replica._was_started = True

    def _main(self) -> None:
        if not self._claim.take("replica"):
            return
        self._replica_turn.get()
        _current.replica = self
        try:
            if not self._unwinding:
                adopt_thread_settings(self._state)
                for adopt in self._adopt:
                    adopt()
                with entered(self._context):
                    self.result = self._body()
        except _Unwind:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            self._state = self._body = None  # type: ignore[assignment]
            self._driver_turn.put(None)

    def proceed(self, replicas: Sequence[_Replica]) -> None:
        """Resumes this replica until it ends or waits at a collective; called by the thread that started it.

        Args:
            replicas: All replicas of the run, for the warning if this one seems to be blocked.
        """
        self._replica_turn.put(None)
        self._await_driver_turn(replicas)

    def _await_driver_turn(self, replicas: Sequence[_Replica]) -> None:
        """Waits, in the driver, until this replica gives the turn back; warns if the replica stays at one place."""
        last = ""
        while True:
            try:
                self._driver_turn.get(timeout=_BLOCKED_SECONDS / 2)
                return
            except Empty:
                place = "" if runs_jax_or_debugger(self._thread) else place_of(self._thread)
            if place and place == last:
                break
            last = place
        _log.warning("%s", _blocked(self, replicas, place))
        self._driver_turn.get()

    def wait_at(self, merge: Merge, payload: list[Any]) -> Any:
        """Waits, in the replica's thread, until a collective has run; returns its result or raises its error."""
        self.merge, self.payload, self.settings = merge, payload, block_settings()
        self._driver_turn.put(None)
        self._replica_turn.get()
        if self._unwinding:
            raise _Unwind
        merge_result, self.merge_result, self.merge, self.payload = self.merge_result, None, None, None
        error, self.merge_error = self.merge_error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # a cycle of exception and Python frame would keep arrays alive
        return merge_result

    def unwind(self, replicas: Sequence[_Replica]) -> None:
        """Ends and joins this replica's thread; repeating the call after an interruption is safe.

        A replica that waits at a merge ends at once; a running one ends at its next merge or when its function returns.
        """
        self._unwinding = True
        has_begun = not self._claim.take("driver")
        if not has_begun:
            self.done = True  # if the thread begins later, it returns at once
        while not self.done:
            # An exception may have interrupted the driver at any point, so it is unknown who has the turn. The replica
            # gets one in any case. If it waits, it unwinds; if it runs, it takes the turn at its next merge and unwinds
            # there. Turns that are left over when the thread ends are dropped with the queue.
            self.proceed(replicas)
        if has_begun or self._was_started:
            self._thread.join()

    def abandon(self) -> None:
        """Makes this replica's thread end at its current or next collective, and does not wait for the thread."""
        self._unwinding = True
        self._claim.take("driver")
        self._replica_turn.put(None)


def _blocked(blocked: _Replica, replicas: Sequence[_Replica], place: str) -> ContextError:
    """Returns the text of the warning that a replica stays at one place, as an error that is not raised."""
    waiting = [f"replica {one.index} waits in {one.merge.name}" for one in replicas if one.merge and one is not blocked]
    return ContextError(
        "Strategy.run",
        found=f"for {_BLOCKED_SECONDS:g} s replica {blocked.index} has been at one place, while "
        f"{waiting[0] if waiting else 'the thread that called run waits for it'}. The replica is at\n{place.rstrip()}",
        rule="each replica has its own thread, which waits in collectives and merge_call for the others: a replica "
        "must not hold a lock there, and the caller of run must not hold one that a replica acquires",
        remedy="if the replica waits for a lock, release it before the collective (threading.RLock does not help); if "
        "it computes, ignore this warning",
    )


def _unwind(replicas: Sequence[_Replica]) -> None:
    """Ends and joins all replicas' threads; then raises the first exception that interrupted the wait, if any.

    The third interruption ends the wait. (It is the fourth Ctrl-C, because the first one has ended the run.) The
    threads that still run are abandoned: each ends at its next merge (`LockStep.run_merge`), or when its function
    returns. Their staged assignments are dropped. Assignments to variables outside of any strategy remain, because they
    are not staged (`runtime.variable_store`).
    """
    interruptions = 0
    interruption: BaseException | None = None
    while True:
        try:
            for replica in replicas:
                replica.unwind(replicas)
            break
        except BaseException as error:
            interruption, interruptions = interruption or error, interruptions + 1
            if interruptions > _MAX_INTERRUPTIONS:
                for replica in replicas:
                    replica.abandon()
                break
    if interruption is not None:
        raise interruption


class LockStep:
    """Runs one function per replica in its own thread; the threads take turns, each up to its next collective."""

    def __init__(self, called: str) -> None:
        self._called = called
        self._replicas: list[_Replica] = []

    def run(self, bodies: Sequence[Callable[[], Any]], contexts: Sequence[Ambient]) -> list[Any]:
        """Runs the replicas' functions to completion in threads, and returns their results in replica order.

        When all replicas wait at a merge, only the `Merge` of the first replica is executed, with the payloads of all.

        Raises:
            MergeError: The replicas call different merges or different numbers of merges, differ in an argument that
                must be equal (whose `Given` can name another class of error), or in the number of recording tapes.
        """
        state = capture_thread_settings()
        adopt = [carrier() for carrier in _carriers]
        self._replicas = [
            _Replica(index, body, context, state, adopt)
            for index, (body, context) in enumerate(zip(bodies, contexts, strict=True))
        ]
        try:
            _Replica.start_all(self._replicas)
            waiting = self._turn(self._replicas)
            while waiting:
                self._merge(waiting)
                waiting = self._turn(waiting)
            return [replica.result for replica in self._replicas]
        finally:
            try:
                _unwind(self._replicas)
            finally:
                self._replicas = []

    def run_merge(self, merge: Merge, payload: list[Any]) -> Any:
        """Waits, in a replica, until all replicas have called the same collective; returns this replica's result."""
        replica = _current.replica
        if replica is not None and replica in self._replicas:
            return replica.wait_at(merge, payload)
        if replica is not None and replica._unwinding:
            raise _Unwind  # an abandoned replica, whose run has ended
        raise MergeError(
            merge.name,
            found=f"it was called in thread {threading.current_thread().name!r}, which is not a replica thread",
            rule="collectives and merge_call must be called in the replica function's own thread",
            remedy="call it in the replica function, not in a thread or callback that the function starts",
        )

    def _turn(self, replicas: Sequence[_Replica]) -> list[_Replica]:
        for replica in replicas:
            replica.proceed(self._replicas)
            if replica.error is not None:
                raise replica.error
        waiting = [replica for replica in replicas if not replica.done]
        if waiting and len(waiting) < len(replicas):
            self._refuse_unequal(waiting)
        return waiting

    def _merge(self, waiting: Sequence[_Replica]) -> None:
        merge = waiting[0].merge
        assert merge is not None
        for replica in waiting[1:]:
            assert replica.merge is not None
            _check_same_merge(self._called, merge, replica.merge, replica.index)
        caches.renew_if_read()  # the driver continues after a replica: helpers that read variables are traced again
        try:
            payloads = [replica.payload for replica in waiting]
            settings = [replica.settings for replica in waiting]
            merge_results = call_with_settings(settings, lambda: merge.complete(payloads))
        except Exception as error:
            for replica in waiting:
                replica.merge_error = error
            return
        for replica, merge_result in zip(waiting, merge_results, strict=True):
            replica.merge_result = merge_result

    def _refuse_unequal(self, waiting: Sequence[_Replica]) -> None:
        ended = sorted(set(range(len(self._replicas))) - {replica.index for replica in waiting})
        merge = waiting[0].merge
        assert merge is not None
        raise MergeError(
            self._called,
            found=f"replica {waiting[0].index} waits at {merge.name}, but replicas {ended} returned without calling it",
            rule="every replica must make the same collective and merge_call calls, equally often",
            remedy=f"call {merge.name} the same number of times on every replica, even for an empty per-replica batch",
        )


def _check_same_merge(called: str, merge: Merge, other: Merge, index: int) -> None:
    """Raises an error if replica `index` has called a different collective or `merge_call` than replica 0.

    Raises:
        MergeError: The operation, an argument that must be equal, or the number of recording tapes differs; or one
            replica has suspended the tapes around the run.
        StructureError: The structure of the values differs.
    """
    if other.name != merge.name:
        raise MergeError(
            called,
            found=f"replica 0 called {merge.name} while replica {index} called {other.name}",
            rule="every replica must make the same collective and merge_call calls, in the same order",
            remedy="do not call them in a Python branch that depends on the replica id",
        )
    for mine, theirs in zip(merge.given, other.given, strict=True):
        if mine.differs_from(theirs):
            raise mine.error(
                merge.name,
                found=f"replica 0 called it with {mine}, and replica {index} with {theirs}",
                rule="every replica must make the same collective and merge_call calls, with the same reduction, axis, "
                "structure, function, variable and optimizer",
                remedy="do not choose these by the replica id or the replica's data; only the values may differ",
            )
    if other.tapes != merge.tapes:
        raise MergeError(
            merge.name,
            found=f"{_tapes(merge)} it in replica 0 and {_tapes(other)} it in replica {index}",
            rule="the gradient of a collective is a collective, so all replicas must record it, or none",
            remedy="open the tape in every replica, or in none: not in a Python branch that depends on the replica id",
        )
    if other.is_suspended != merge.is_suspended:
        raise MergeError(
            merge.name,
            found=f"the tapes around the run record it in replica {index if merge.is_suspended else 0}, and are "
            f"suspended in replica {0 if merge.is_suspended else index}",
            rule="an operation of all replicas runs once for all of them: tapes around the run record it, or not",
            remedy="suspend the tapes in every replica, or in none: not in a Python branch that depends on the replica "
            "id",
        )


def _tapes(merge: Merge) -> str:
    return (
        "no tape records"
        if not merge.tapes
        else "1 tape records"
        if merge.tapes == 1
        else f"{merge.tapes} tapes record"
    )
