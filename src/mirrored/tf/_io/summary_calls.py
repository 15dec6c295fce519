"""Calls the host from compiled code to write summary values, in program order."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer, current_trace, trace_below_tapes
from mirrored.tf._asking import inside_function
from mirrored.tf._host_calls import record_if_omitted
from mirrored.tf._tensors import as_tensor

_log: Final = logging.getLogger("mirrored")


class _Order:
    """Puts the host calls of one trace into program order, in which XLA need not make them.

    An execution of the trace (of a function, or the body of a branch or loop) makes each of its calls once. A call
    waits here until those before it have been made. Recomputed and vectorized code makes a call several times: then the
    waiting calls are made at once.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: list[deque[Callable[[], object]]] = []
        self._next = 0

    def add(self) -> int:
        """Returns the place of another call of the trace."""
        self._waiting.append(deque())
        return len(self._waiting) - 1

    def arrived(self, place: int, call: Callable[[], object]) -> None:
        """Makes a call as soon as those before it have been made."""
        with self._lock:
            self._waiting[place].append(call)
            if len(self._waiting[place]) > 1:
                self.finish()
            while waiting := self._waiting[self._next]:
                waiting.popleft()()
                self._next = (self._next + 1) % len(self._waiting)

    def finish(self) -> None:
        """Makes all calls that wait."""
        with self._lock:
            self._next = 0
            for waiting in self._waiting:
                while waiting:
                    waiting.popleft()()


_orders: Final[weakref.WeakKeyDictionary[Any, _Order]] = weakref.WeakKeyDictionary()  # of the traces in progress
_all_orders: Final[weakref.WeakSet[_Order]] = weakref.WeakSet()  # of these and of the programs


def is_compiled(*values: object) -> bool:
    """Returns whether the calling code is being traced, or one of the values is known at execution only."""
    return inside_function() or any(isinstance(payload_of(one), Tracer) for one in values)


def call_host(called: str, function: Callable[[Mapping[str, Any]], object], values: Mapping[str, Any]) -> None:
    """Calls a function on the host at each execution of the traced program, in program order.

    An exception of the function is logged at level ERROR: it would leave other devices deadlocked in a collective.

    Args:
        called: What the user called, for messages.
        function: Receives the values, tensors as NumPy arrays.
        values: Tensors, and Python values that are passed as they are now.
    """
    if record_if_omitted(called):
        return
    tensors = {name: as_tensor(one) for name, one in values.items() if is_tensor_of_program(one)}
    others = {name: _as_it_is_now(one) for name, one in values.items() if name not in tensors}
    trace = trace_below_tapes(current_trace())
    order = _orders.setdefault(trace, _Order())
    _all_orders.add(order)
    place = order.add()

    def make(given: Mapping[str, Any]) -> None:
        try:
            function(given)
        except Exception:
            _log.exception("%s failed in compiled code; its value is lost", called)

    def host(arrays: Mapping[str, Any]) -> None:
        given = {**others, **{name: np.asarray(one) for name, one in arrays.items()}}
        if given.get("is_first", True):  # the calls of other replicas have an order of their own
            order.arrived(place, lambda: make(given))

    jax.debug.callback(host, tensors)


def is_tensor_of_program(value: object) -> bool:
    """Returns whether a value may be known at execution only: a JAX array, a variable, or a sequence with one."""
    if isinstance(value, (list, tuple)):
        return any(map(is_tensor_of_program, value))
    return isinstance(value, jax.Array) or hasattr(type(value), "__jax_array__")


def _as_it_is_now(value: Any) -> Any:
    return value.copy() if isinstance(value, (np.ndarray, list)) else value


def wait_for_calls() -> None:
    """Waits for the host calls of the programs that this thread has started."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        _log.debug("a program with host calls has failed", exc_info=True)  # its caller has the error
    for order in list(_all_orders):
        order.finish()
