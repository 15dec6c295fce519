"""New variables whose value may come from a checkpoint that was restored before they were made.

A checkpoint knows a variable by the path to it, and a variable that is just being made has none yet. So a new variable
is only marked; whoever first asks for its stored value has the checkpoint look for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

Settle = Callable[[Any], None]
withheld: Final[dict[int, weakref.ref[Any]]] = {}
"""The variables whose value somebody has to be asked for, by identity."""


class _RestoreWatch:
    made: Callable[[Any], Settle | None] | None = None


def set_watch(made: Callable[[Any], Settle] | None) -> None:
    """Has `made` called with every new variable; None: no more.

    Args:
        made: Returns what is to be called with the variable before its value is first used, or None.
    """
    _RestoreWatch.made = made


class Awaiting:
    """A variable's value that somebody has to be asked for before it is used."""

    # A checkpoint that was restored before, for instance. Nearly always None.
    _withheld: Settle | None = None
    _array: Any

    def initial(self) -> Any:
        """The whole value in storage as it is, without communication."""
        return self._array

    def await_value(self) -> None:
        """Lets a checkpoint that waits for this variable give it its value, before anybody uses it."""
        ask = None if _RestoreWatch.made is None else _RestoreWatch.made(self)
        if ask is not None:
            self.withhold(ask)

    def withhold(self, ask: Settle) -> None:
        """Has `ask` called with the variable before its value is next used."""
        key = id(self)
        self._withheld = ask
        withheld[key] = weakref.ref(self, lambda _: withheld.pop(key, None))

    def is_withheld_from(self, ask: Settle) -> bool:
        """Whether somebody other than `ask` has to be asked for the value."""
        return self._withheld is not None and self._withheld is not ask

    def settle(self) -> None:
        """Asks for the value, if somebody has to be asked before it is used."""
        ask = self._withheld
        self.release()
        if ask is not None:
            ask(self)

    def release(self) -> None:
        """Lets the value in storage be used as it is."""
        if self._withheld is not None:
            self._withheld = None
            withheld.pop(id(self), None)


def settle_all(variables: Iterable[Any]) -> None:
    """Asks for the values of those of the variables that somebody has to be asked for."""
    for variable in variables:
        if id(variable) in withheld:
            variable.settle()
