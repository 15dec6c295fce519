"""Announcing reads and writes of variables to whoever listens (tapes do).

`tape` and `variables` do not know each other: a variable announces, a listener answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mirrored.runtime.ambient import ambient, replace_current

if TYPE_CHECKING:
    import jax


class ReadableVariable(Protocol):
    """What a listener may know of a variable."""

    @property
    def trainable(self) -> bool:
        """Whether tapes watch it by themselves."""
        ...

    @property
    def name(self) -> str:
        """For messages."""
        ...


class ReadListener(Protocol):
    """Is told of every read and write of a variable in this thread (and in the replicas it runs)."""

    def on_read(self, variable: Any, value: jax.Array) -> jax.Array:
        """The value to hand to the reader in place of `value` (a box around it, or `value` itself)."""
        ...

    def on_write(self, variable: Any) -> None:
        """`variable` is about to get another value."""
        ...

    def tracks(self, value: Any) -> bool:
        """Whether operations on this array are recorded."""
        ...


def listen(listener: ReadListener) -> None:
    """Registers `listener` in this thread, as the innermost one."""
    here = ambient()
    replace_current(here.fork(listeners=(*here.listeners, listener)))


def unlisten(listener: ReadListener) -> None:
    """Takes `listener` out again."""
    here = ambient()
    replace_current(here.fork(listeners=tuple(one for one in here.listeners if one is not listener)))


def announce_read(variable: Any, value: jax.Array) -> jax.Array:
    """Passes a value read from `variable` through the listeners, outermost first."""
    for listener in ambient().listeners:
        value = listener.on_read(variable, value)
    return value


def is_tracked(value: Any) -> bool:
    """Whether a listener records what is done with this array."""
    return any(listener.tracks(value) for listener in ambient().listeners)


def announce_write(variable: Any) -> None:
    """Tells the listeners that `variable` is about to change."""
    for listener in ambient().listeners:
        listener.on_write(variable)
