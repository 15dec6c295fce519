"""Undoes assignments to attributes, closure variables and globals by a trace whose result is discarded."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from mirrored.compilation.captured_objects import (
    assigned_in,
    attributes_of,
    has_base_of_library,
    is_users,
    names_in,
    nested,
)
from mirrored.compilation.frozen_state import PythonState, codes_of, within_reach
from mirrored.compilation.signature import RaggedWhileTracing

_MISSING: Final = object()


class Names:
    """A snapshot of what a function may reassign: attributes of the user's objects, closure variables and globals.

    Args:
        function: The Python function.
        leaves: The leaves of its arguments.
    """

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any]) -> None:
        functions: list[Any] = []
        found = [("", leaf) for leaf in leaves] + within_reach(function, functions)
        reached = list(nested(found))
        deep = [value for _, value in reached]
        # With several threads, another one may assign the other attributes at any time.
        self._assigned = None if threading.active_count() == 1 else _assigned(functions, reached)
        functions += [value for value in deep if isinstance(value, types.FunctionType) and is_users(value)]
        cells = {id(cell): cell for one in functions for cell in one.__closure__ or ()}
        self._cells = [(cell, _content(cell)) for cell in cells.values()]
        self._globals = [(one.__globals__, _named(one)) for one in functions]
        owners = (value for value in deep if is_users(type(value)))
        self._attributes = [(owner, self._own_attributes(owner)) for owner in owners]

    def rewind(self) -> None:
        """Restores the attributes, closure variables and globals in this snapshot to their saved values."""
        for cell, before in self._cells:
            if _content(cell) is not before:
                if before is _MISSING:
                    del cell.cell_contents
                else:
                    cell.cell_contents = before
        for names, kept in self._globals:
            for name, _ in _changes(kept, {name: names[name] for name in kept if name in names}):
                names[name] = kept[name]
        for owner, kept in self._attributes:
            for name, before in _changes(kept, self._own_attributes(owner)):
                with contextlib.suppress(AttributeError, TypeError):  # the class forbids it
                    if before is _MISSING:
                        object.__delattr__(owner, name)
                    else:
                        object.__setattr__(owner, name, before)

    def _own_attributes(self, owner: object) -> dict[str, Any]:
        own = _own_attributes(owner)
        if self._assigned is None or has_base_of_library(type(owner)):
            return own
        return {name: value for name, value in own.items() if name in self._assigned}


def undo_trace(state: PythonState, names: Names | None, ended: BaseException) -> None:
    """Undoes what a trace that was given up has changed, before the function runs as Python.

    Args:
        state: The snapshot of containers, iterators and random generators.
        names: That of attributes, closure variables and globals; None if they stay, with the variables that they hold.
        ended: What has ended the trace.

    Raises:
        ArgumentError: The trace has closed a generator, or may have taken elements of an iterator before a run of
            uneven values.
    """
    state.put_back()
    if names is not None and state.can_rewind:
        state.rewind()
        names.rewind()
    state.check_generators()
    if isinstance(ended, RaggedWhileTracing):
        state.refuse_iterators()


def _assigned(functions: Sequence[Any], reached: Sequence[tuple[str, Any]]) -> set[str] | None:
    """Returns the attribute names that the functions may assign; None if they may assign any, as with `setattr`."""
    codes = codes_of(functions, reached)
    named = [names_in(code) for code in codes]
    if any("setattr" in names or "vars" in names or "__dict__" in attributes for names, attributes in named):
        return None
    return set().union(*(assigned_in(code) for code in codes))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields each name whose value has changed, with its old value, or `_MISSING` for a new name."""
    for name in {**before, **after}:
        old = before.get(name, _MISSING)
        if after.get(name, _MISSING) is not old:
            yield name, old


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _named(function: types.FunctionType) -> dict[str, Any]:
    """Returns the global variables that a function uses, with their values."""
    names = names_in(function.__code__)[0]
    return {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}


def _own_attributes(owner: object) -> dict[str, Any]:
    """Returns the attributes that are stored in an object itself, including slots, but not attributes of its class."""
    own = getattr(owner, "__dict__", {})
    parts = (part for base in type(owner).__mro__ for part in vars(base).items())
    slots = {name for name, part in parts if isinstance(part, types.MemberDescriptorType)}
    return {name: value for name, value in attributes_of(owner).items() if name in own or name in slots}
