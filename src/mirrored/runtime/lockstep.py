"""Running local replicas in lock-step: threads that run strictly one at a time.

Each replica runs until it meets a merge; when all have arrived the merge runs once, in the thread that started them,
and they go on in turn. An exception in one replica unwinds and joins all of them. The same runner serves eager code and
tracing: the threads carry all of JAX's thread-local state, so several replicas can be traced into one program.
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

_MOST_INTERRUPTIONS: Final = 2
Carrier = Callable[[], Callable[[], None]]
_carriers: list[Carrier] = []


def carry(carrier: Carrier) -> None:
    """Adds to the thread-local state that replica threads start with.

    Args:
        carrier: Called in the thread that starts a run; what it returns is called first in each replica's thread.
    """
    _carriers.append(carrier)


class _Unwind(BaseException):
    """Ends a replica that waits at a merge which will not happen. Not an `Exception`: user code must not catch it."""


class _Replica:
    """One replica's thread, and the baton that it and the driver pass back and forth."""

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
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._body = body
        self._context = context
        self._state = state
        self._adopt = adopt
        self._unwinding = False
        self._begun = threading.Lock()  # taken by its thread, or by the driver that finds that it never began
        # Turns are handed over through queues in C: an exception leaves a semaphore of Python's half released.
        self._mine: SimpleQueue[None] = SimpleQueue()
        self._drivers: SimpleQueue[None] = SimpleQueue()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._main,), name=f"replica-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _main(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        self._mine.get()
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
            self._drivers.put(None)

    def proceed(self) -> None:
        """Driver: lets this replica run until it meets or ends."""
        self._mine.put(None)
        self._drivers.get()

    def wait_at(self, merge: Merge, payload: Any) -> Any:
        """Replica: hands over, and comes back with the merge's result."""
        self.merge, self.payload = merge, payload
        self._drivers.put(None)
        self._mine.get()
        if self._unwinding:
            raise _Unwind
        answer, self.answer, self.merge, self.payload = self.answer, None, None, None
        return answer

    def unwind(self) -> None:
        """Driver: ends it wherever it is, and joins it. Called again after an exception it goes on where it was."""
        self._unwinding = True
        if self._thread.ident is None and self._begun.acquire(blocking=False):
            self.done = True  # an exception came before the thread began: it never will
        while not self.done:
            # An exception may have interrupted the driver at any point, so the replica gets a turn whoever's it is;
            # one too many is never used.
            self._mine.put(None)
            self._drivers.get()
        if self._thread.ident is not None:
            self._thread.join()


def _unwind(replicas: Sequence[_Replica]) -> None:
    """Ends and joins all replicas, whatever interrupts this; the first interruption is raised afterwards.

    A replica ends when it comes to a merge or to its end. A user who interrupts this again and again will not wait for
    that: then the thread is left to itself, and what it assigns is dropped.
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
            if interruptions > _MOST_INTERRUPTIONS:
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
        """Runs the bodies to their ends, in index order, and returns their results.

        Raises:
            MergeError: One replica met a merge that another never reached, or another merge.
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
        """Called by a replica: waits for the others at `merge`."""
        thread = threading.current_thread()
        for replica in self._replicas:
            if replica._thread is thread:
                return replica.wait_at(merge, payload)
        raise MergeError(
            merge.name,
            found=f"it was called in thread {thread.name!r}, which is not a replica's",
            rule="a merge is called by the replica function itself",
            remedy="call it in the replica function, not in a thread or callback started there",
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
                    rule="all replicas make the same merges in the same order",
                    remedy="do not let a Python branch on the replica id surround a merge or collective",
                )
        jit_key.moved()
        answers = merge.run([replica.payload for replica in waiting])
        for replica, answer in zip(waiting, answers, strict=True):
            replica.answer = answer

    def _refuse_unequal(self, waiting: Sequence[_Replica]) -> None:
        ended = sorted(set(range(len(self._replicas))) - {replica.index for replica in waiting})
        merge = waiting[0].merge
        assert merge is not None
        raise MergeError(
            self._called,
            found=f"replica {waiting[0].index} waits at {merge.name}, replicas {ended} have ended without it",
            rule="all replicas make the same number of merges",
            remedy="make every replica call it the same number of times (also with an empty share of the batch)",
        )
