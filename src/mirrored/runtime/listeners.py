"""Read and write listeners of variables. Tapes are such listeners.

They decouple the packages `tape` and `variables`, which do not import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mirrored.runtime.ambient import ambient, replace_current

if TYPE_CHECKING:
    import jax


class ReadableVariable(Protocol):
    """The interface of a variable that a listener can use."""

    @property
    def trainable(self) -> bool:
        """Whether tapes watch it automatically."""
        ...

    @property
    def name(self) -> str:
        """The name, for messages."""
        ...


class ReadListener(Protocol):
    """Is notified of every read and write of a variable in this thread and in the replicas that it runs."""

    def on_read(self, variable: Any, value: jax.Array) -> jax.Array:
        """Returns the value that the reader receives: a box around `value`, or `value` itself."""
        ...

    def on_write(self, variable: Any) -> None:
        """Is called before `variable` is assigned."""
        ...

    def tracks(self, value: Any) -> bool:
        """Returns whether operations on this array are recorded."""
        ...


def listen(listener: ReadListener) -> None:
    """Registers `listener` in this thread, as the innermost one."""
    here = ambient()
    replace_current(here.fork(listeners=(*here.listeners, listener)))


def unlisten(listener: ReadListener) -> None:
    """Unregisters `listener`."""
    here = ambient()
    replace_current(here.fork(listeners=tuple(one for one in here.listeners if one is not listener)))


def announce_read(variable: Any, value: jax.Array) -> jax.Array:
    """Passes a value read from `variable` through the listeners, outermost first."""
    for listener in ambient().listeners:
        value = listener.on_read(variable, value)
    return value


def is_tracked(value: Any) -> bool:
    """Returns whether a listener records operations on this array."""
    return any(listener.tracks(value) for listener in ambient().listeners)


def announce_write(variable: Any) -> None:
    """Notifies the listeners that `variable` is about to be assigned."""
    for listener in ambient().listeners:
        listener.on_write(variable)
