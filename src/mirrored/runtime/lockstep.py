"""Runs local replicas in lock-step, in threads of which exactly one runs at a time.

Each replica runs until it calls a merge, and waits there at a barrier. When all replicas have arrived, the merge runs
once, in the thread that started them (the driver). Then the replicas continue in index order. An exception in one
replica unwinds and joins all of them. The same runner serves eager code and tracing: the threads copy all of JAX's
thread-local state, so several replicas can be traced into one program.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final

from mirrored._jax import jit_key
from mirrored._jax.thread_state import ThreadState, adopt_thread_state, capture_thread_state
from mirrored.errors import MergeError
from mirrored.runtime.ambient import Ambient, entered
from mirrored.runtime.merging import Merge

_MAX_INTERRUPTIONS: Final = 2
Carrier = Callable[[], Callable[[], None]]
_carriers: list[Carrier] = []


def carry(carrier: Carrier) -> None:
    """Registers thread-local state that replica threads inherit.

    Args:
        carrier: Captures the state. It is called in the thread that starts a run; the function that it returns is
            called first in each replica thread.
    """
    _carriers.append(carrier)


class _Unwind(BaseException):
    """Ends a replica that waits at a merge that cannot run. Not an `Exception`: user code must not catch it."""


class _Replica:
    """One replica's thread, and the two queues by which it and the driver hand each other the turn to run."""

    def __init__(
        self,
        index: int,
        body: Callable[[], Any],
        context: Ambient,
        state: ThreadState,
        adopt: Sequence[Callable[[], None]],
    ) -> None:
        self.index = index
        self.merge: Merge | None = None
        self.payload: Any = None
        self.merge_result: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._body = body
        self._context = context
        self._state = state
        self._adopt = adopt
        self._unwinding = False
        self._begun = threading.Lock()  # acquired by the thread when it begins, or by the driver to prevent that
        # `SimpleQueue` is atomic: it is written in C. `threading.Semaphore` is written in Python, so an exception
        # such as Ctrl-C can interrupt it halfway.
        self._replica_turn: SimpleQueue[None] = SimpleQueue()
        self._driver_turn: SimpleQueue[None] = SimpleQueue()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._main,), name=f"replica-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _main(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        self._replica_turn.get()
        try:
            if not self._unwinding:
                adopt_thread_state(self._state)
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

    def proceed(self) -> None:
        """Driver: runs this replica until it waits at a merge or ends."""
        self._replica_turn.put(None)
        self._driver_turn.get()

    def wait_at(self, merge: Merge, payload: Any) -> Any:
        """Replica: hands the turn to the driver, and returns the merge's result when it continues."""
        self.merge, self.payload = merge, payload
        self._driver_turn.put(None)
        self._replica_turn.get()
        if self._unwinding:
            raise _Unwind
        merge_result, self.merge_result, self.merge, self.payload = self.merge_result, None, None, None
        return merge_result

    def unwind(self) -> None:
        """Driver: ends and joins the replica wherever it is. Can be called again if an exception interrupts it."""
        self._unwinding = True
        if self._thread.ident is None and self._begun.acquire(blocking=False):
            self.done = True  # an exception prevented the start, so the thread will never run
        while not self.done:
            # An exception may have interrupted the driver at any point, so it is unknown who has the turn. The replica
            # gets one in any case; a surplus turn is never used.
            self._replica_turn.put(None)
            self._driver_turn.get()
        if self._thread.ident is not None:
            self._thread.join()


def _unwind(replicas: Sequence[_Replica]) -> None:
    """Ends and joins all replicas even if exceptions interrupt it, and then raises the first of these exceptions.

    A replica ends when it reaches a merge or its end. If the user interrupts the wait several times, the thread is
    abandoned, and its assignments are dropped.
    """
    interruptions = 0
    interruption: BaseException | None = None
    while True:
        try:
            for replica in replicas:
                replica.unwind()
            break
        except BaseException as error:
            interruption, interruptions = interruption or error, interruptions + 1
            if interruptions > _MAX_INTERRUPTIONS:
                break
    if interruption is not None:
        raise interruption


class LockStep:
    """Runs one function per local replica, in lock-step."""

    def __init__(self, called: str) -> None:
        self._called = called
        self._replicas: list[_Replica] = []
        self._by_thread: dict[int, _Replica] = {}

    def run(self, bodies: Sequence[Callable[[], Any]], contexts: Sequence[Ambient]) -> list[Any]:
        """Runs the bodies to completion, in index order, and returns their results.

        Raises:
            MergeError: The replicas call different merges, or different numbers of merges.
        """
        state = capture_thread_state()
        adopt = [carrier() for carrier in _carriers]
        self._replicas = [
            _Replica(index, body, context, state, adopt)
            for index, (body, context) in enumerate(zip(bodies, contexts, strict=True))
        ]
        try:
            for replica in self._replicas:
                replica.start()
            waiting = self._turn(self._replicas)
            while waiting:
                self._merge(waiting)
                waiting = self._turn(waiting)
            return [replica.result for replica in self._replicas]
        finally:
            _unwind(self._replicas)
            self._replicas = []

    def run_merge(self, merge: Merge, payload: Any) -> Any:
        """Replica: waits at the barrier of `merge` and returns this replica's result."""
        thread = threading.current_thread()
        for replica in self._replicas:
            if replica._thread is thread:
                return replica.wait_at(merge, payload)
        raise MergeError(
            merge.name,
            found=f"it was called in thread {thread.name!r}, which is not a replica thread",
            rule="a merge must be called by the replica function itself",
            remedy="call it in the replica function, not in a thread or callback that it starts",
        )

    def _turn(self, replicas: Sequence[_Replica]) -> list[_Replica]:
        for replica in replicas:
            replica.proceed()
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
            if replica.merge.name != merge.name:
                raise MergeError(
                    self._called,
                    found=f"replica 0 called {merge.name} while replica {replica.index} called {replica.merge.name}",
                    rule="all replicas call the same merges in the same order",
                    remedy="do not call a merge or collective in a Python branch that depends on the replica id",
                )
        jit_key.moved()
        merge_results = merge.run([replica.payload for replica in waiting])
        for replica, merge_result in zip(waiting, merge_results, strict=True):
            replica.merge_result = merge_result

    def _refuse_unequal(self, waiting: Sequence[_Replica]) -> None:
        ended = sorted(set(range(len(self._replicas))) - {replica.index for replica in waiting})
        merge = waiting[0].merge
        assert merge is not None
        raise MergeError(
            self._called,
            found=f"replica {waiting[0].index} waits at {merge.name}, but replicas {ended} returned without calling it",
            rule="all replicas call merges the same number of times; otherwise the barrier would deadlock",
            remedy="make every replica call it the same number of times, also with an empty per-replica batch",
        )
