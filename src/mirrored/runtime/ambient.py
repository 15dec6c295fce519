"""Per-thread context: the current strategy, replica, variable store, and listeners of variable reads and writes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import jax

    from mirrored.runtime.element_draws import ElementDraws
    from mirrored.runtime.hooks import RunInterceptor
    from mirrored.runtime.replica_runner import ReplicaRunner
    from mirrored.runtime.variable_store import VariableStore
    from mirrored.variables.open_shapes import OpenShapes


# The ambient context: the current strategy, replica, variable store and so on, in one object per thread.
#
# A replica thread starts with a copy of it (`Ambient.fork`), and no other mechanism carries ambient state.
# `mirrored._jax.interrupts` copies JAX's own thread-local state.


@dataclasses.dataclass
class Ambient:
    """The context of one thread: current strategy, replica, variable store, and read and write listeners.

    Attributes:
        strategies: The strategies whose scope (or `run`) is open, innermost last.
        replica: The replica context; None in cross-replica context and outside any strategy.
        store: The variable store that variables are read from and written to; None means their storage.
        listeners: The listeners that are notified of reads and writes of variables, innermost last.
        runner: The replica runner of the enclosing `run`; None outside of `run`.
        interceptor: Compiles the runs of the enclosing function that is driven from Python; None outside of one.
        creators: The variable creators of the open `variable_creator_scope` blocks, innermost last.
        element: The random numbers of the dataset's function that is called; None outside of such functions.
        shapes: Records the variables whose shape may change and which a trace uses; None outside of such traces.
        updates: Whether replicas run the function of `StrategyExtended.update`, whose values are reduced already.
    """

    strategies: tuple[Any, ...] = ()
    replica: Any = None
    store: VariableStore | None = None
    listeners: tuple[ReadListener, ...] = ()
    runner: ReplicaRunner | None = None
    interceptor: RunInterceptor | None = None
    creators: tuple[Callable[..., Any], ...] = ()
    element: ElementDraws | None = None
    shapes: OpenShapes | None = None
    updates: bool = False

    @property
    def device_assignment(self) -> Any:
        """The device assignment of the current strategy; None for the default strategy or without a strategy."""
        return self.strategies[-1].device_assignment if self.strategies else None

    @property
    def is_in_replica_context(self) -> bool:
        """Whether the thread is in replica context: in a replica of `Strategy.run`, or outside of any strategy."""
        return self.replica is not None or not (self.strategies or self.runner is not None)

    def fork(self, **changes: Any) -> Ambient:
        """Returns a copy of this context with some fields changed, for another thread or a nested block."""
        return dataclasses.replace(self, **changes)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current = Ambient()


_thread = thread = _Thread()
"""The thread-local context. Code that must not be interrupted by an exception assigns `thread.current` directly."""


def ambient() -> Ambient:
    """Returns this thread's context: current strategy, replica, listeners. Callers must not modify it."""
    return _thread.current


class _Entered:
    """Context manager that `entered` returns; sets this thread's context (strategy, replica, listeners) for a block.

    A generator would not do: after an exception that interrupts its end, Python finalizes it with the traceback, maybe
    much later, and it would then replace the context of that moment.
    """

    __slots__ = ("_context", "_previous")

    def __init__(self, context: Ambient) -> None:
        self._context = context

    def __enter__(self) -> Ambient:
        self._previous = _thread.current
        _thread.current = self._context
        return self._context

    def __exit__(self, *_: object) -> None:
        _thread.current = self._previous


def entered(context: Ambient) -> AbstractContextManager[Ambient]:
    """Makes `context` the context of this thread (strategy, replica, listeners) during a ``with`` block."""
    return _Entered(context)


def within(**changes: Any) -> AbstractContextManager[Ambient]:
    """Changes fields of this thread's context, such as the current strategy, during a ``with`` block.

    The other fields are those at the time of the call.
    """
    return _Entered(_thread.current.fork(**changes))


def replace_current(context: Ambient) -> None:
    """Makes `context` the context of this thread (current strategy, replica, listeners) until the next replacement.

    Listeners that are opened and closed by separate calls use it.
    """
    _thread.current = context


# Read and write listeners of variables. Tapes are such listeners, and so are the variable stores of traces.
#
# They decouple the packages `tape` and `variables`, which do not import each other.


class ReadableVariable(Protocol):
    """Protocol of variables: the members used by gradient tapes and other listeners."""

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch the variable automatically."""
        ...

    @property
    def name(self) -> str:
        """The variable's name, for error messages."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable's value."""
        ...

    @property
    def dtype(self) -> Any:
        """The dtype of the variable's value."""
        ...

    @property
    def serial(self) -> int:
        """The number of the variable in the order of creation; variables created later have larger numbers."""
        ...

    def read_value(self) -> Any:
        """Returns the variable's value in the current strategy and replica context."""
        ...


class ReadListener(Protocol):
    """Protocol of objects, such as gradient tapes, that are notified when a thread reads or writes variables.

    They are also notified of those in the replicas that the thread runs.
    """

    def on_read(self, variable: ReadableVariable, value: jax.Array) -> jax.Array:
        """Called when a variable is read; returns the array that the reader gets in place of `value`.

        This is an array that a tape tracks (a box), or `value` itself.
        """
        ...

    def on_write(self, variables: Sequence[ReadableVariable]) -> None:
        """Called before variables are assigned."""
        ...

    def on_reassign(self, variable: ReadableVariable, value: object) -> None:
        """Called after an assignment that has a derivative, as in Flax NNX: gradients of later reads flow to `value`.

        If `value` is None, the variable's newest assignment has no derivative, as the update of an optimizer: gradients
        flow to the variable itself. Assignments outside of Flax NNX never have a derivative.
        """
        ...

    def tracks(self, value: object) -> bool:
        """Returns whether this listener records operations on the array `value`, as a gradient tape does."""
        ...


L = TypeVar("L", bound=ReadListener)


def listen(listener: ReadListener, before: ReadListener | None = None) -> None:
    """Registers a listener (such as a tape) of variable reads and writes in this thread.

    Args:
        listener: The listener.
        before: The registered listener that it precedes, because it is further out; None registers it as the innermost.
    """
    here = ambient()
    registered = here.listeners
    place = next((at for at, one in enumerate(registered) if one is before), len(registered))
    replace_current(here.fork(listeners=(*registered[:place], listener, *registered[place:])))


def unlisten(listener: ReadListener) -> None:
    """Unregisters a listener of variable reads and writes that `listen` has registered in this thread."""
    here = ambient()
    replace_current(here.fork(listeners=tuple(one for one in here.listeners if one is not listener)))


class listening(Generic[L]):
    """Context manager in which a listener is notified of variable reads and writes; an interrupt does not keep it."""

    __slots__ = ("_listener",)

    def __init__(self, listener: L) -> None:
        self._listener = listener

    def __enter__(self) -> L:
        before = _thread.current
        try:
            listen(self._listener)
            return self._listener
        except BaseException:
            _thread.current = before
            raise

    def __exit__(self, *_: object) -> None:
        try:
            unlisten(self._listener)
        except BaseException:  # an interrupt where the function begins
            unlisten(self._listener)
            raise


def announce_read(variable: ReadableVariable, value: jax.Array) -> jax.Array:
    """Passes a value read from `variable` through all listeners (such as tapes), and returns the resulting value.

    The outermost listener comes first. Listeners get the variable of the framework that a `mirrored` variable backs, by
    which the program asks for gradients: blocks and compiled functions capture the backing variable.
    """
    for listener in ambient().listeners:
        value = listener.on_read(getattr(variable, "announced", variable), value)
    return value


def is_tracked(value: object) -> bool:
    """Returns whether a gradient tape of this thread records operations on the array."""
    return any(listener.tracks(value) for listener in ambient().listeners)


def announce_write(variables: Sequence[ReadableVariable]) -> None:
    """Notifies this thread's listeners that variables are about to be assigned."""
    for listener in ambient().listeners:
        listener.on_write(variables)


def announce_reassignment(variable: ReadableVariable, value: object) -> None:
    """Notifies this thread's listeners whether gradients flow through a variable's newest assignment.

    Gradients of later reads flow to the assigned `value`, because Flax NNX differentiates assignments. If `value` is
    None, they flow to the variable itself.
    """
    for listener in ambient().listeners:
        listener.on_reassign(variable, value)
