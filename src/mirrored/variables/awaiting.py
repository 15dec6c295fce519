"""Deferred restoration: a new variable may take its value from a checkpoint that was restored before it existed.

A checkpoint identifies a variable by its path in the object graph, and a variable has no path while its constructor
runs. So the constructor only registers a callback. The first access to the stored value calls it, and the checkpoint
then looks the variable up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

Settle = Callable[[Any], None]
withheld: Final[dict[int, weakref.ref[Any]]] = {}
"""The variables with a pending restore callback, by identity."""


class _RestoreWatch:
    made: Callable[[Any], Settle | None] | None = None


def set_watch(made: Callable[[Any], Settle] | None) -> None:
    """Registers `made`, which is called with every new variable. None unregisters it.

    Args:
        made: Returns the callback to call with the variable before its value is first used, or None.
    """
    _RestoreWatch.made = made


class Awaiting:
    """Mixin of variables: a stored value with an optional callback that provides it before its first use."""

    # The pending callback, set by a checkpoint that was restored earlier. Nearly always None.
    _withheld: Settle | None = None
    _array: Any

    def initial(self) -> Any:
        """Returns the whole stored value as it is. Does not communicate and does not call the callback."""
        return self._array

    def await_value(self) -> None:
        """Registers the restore callback if a checkpoint expects this variable."""
        ask = None if _RestoreWatch.made is None else _RestoreWatch.made(self)
        if ask is not None:
            self.withhold(ask)

    def withhold(self, ask: Settle) -> None:
        """Registers `ask`, which is called with the variable before the next use of its value."""
        key = id(self)
        self._withheld = ask
        withheld[key] = weakref.ref(self, lambda _: withheld.pop(key, None))

    def is_withheld_from(self, ask: Settle) -> bool:
        """Returns whether a callback other than `ask` is pending."""
        return self._withheld is not None and self._withheld is not ask

    def settle(self) -> None:
        """Calls the pending callback, if there is one, and removes it."""
        ask = self._withheld
        self.release()
        if ask is not None:
            ask(self)

    def release(self) -> None:
        """Removes the pending callback: the stored value is used as it is."""
        if self._withheld is not None:
            self._withheld = None
            withheld.pop(id(self), None)


def settle_all(variables: Iterable[Any]) -> None:
    """Calls the pending callbacks of the given variables."""
    for variable in variables:
        if id(variable) in withheld:
            variable.settle()
