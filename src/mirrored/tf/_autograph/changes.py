"""Finds the items and attributes that a branch or a loop body changes, so that they become part of its state.

AutoGraph's passes know the names that a branch assigns. Items (`a[i + 1] = x`) and attributes are found here, while the
branch is traced: converted code announces each object before it changes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax

from mirrored._blocks import contextmanager
from mirrored._jax.traces import Tracer
from mirrored._jax.trees import tree_flatten
from mirrored.tf._autograph.effects import depth
from mirrored.tf._autograph.places import Place, Record, differ, has_setter, is_buffer, is_property, parts_of, undo
from mirrored.tf._autograph.state import is_undefined
from mirrored.tf._errors import InvalidArgumentError

_MOST_OBJECTS = 20_000  # objects that the search for a changed object visits at most


def write_all(values: Iterable[tuple[Place, object]]) -> None:
    """Sets values in order, and records the former ones for the branch or the loop body around this statement."""
    values = list(values)
    for place, value in values:
        if _threads.changes:  # of all places first: setting one can change another one, which follows it
            _threads.changes[-1].note(place)
        if is_buffer(place.owner) and any(isinstance(leaf, Tracer) for leaf in tree_flatten(value)[0]):
            raise InvalidArgumentError.of(
                place.name,
                found="items of a NumPy array are assigned where a tensor decides whether they are",
                rule="a NumPy array holds values that are known while tracing",
                remedy="use a list, or a tensor and tf.where or tf.tensor_scatter_nd_update",
            )
    for place, value in values:
        place.put(value)


class Changes:
    """What one branch or loop body changes, except names.

    Args:
        body: The function of converted code that runs the branch or the body.
    """

    def __init__(self, body: Callable[..., object]) -> None:
        self._body = body
        self._records: dict[Place, Record] = {}
        self.depth = depth()

    def note(self, place: Place) -> None:
        """Records the value of a place, unless an earlier value of it is recorded, or the owner refuses to show it."""
        if place not in self._records:
            with contextlib.suppress(Exception):  # from the user's `__getitem__` or property
                self._records[place] = Record(place, place.read())

    def note_parts(self, owner: Any, name: str, place: Place | None) -> None:
        """Records the attributes of an object, and the lists, dicts and arrays in them, because code of its class runs.

        The code is that of a property or of `__setitem__`. It has run once in the branch, and is not to run again to
        undo and repeat what it did: it may count its calls, or store another value than it gets. If it changes another
        object, the value of the property or item itself is read and set, too.

        Args:
            owner: The object.
            name: How the code refers to the object, for messages.
            place: The property or item; None if it is recorded anyway or cannot be.
        """
        parts = parts_of(owner, name)
        if place is not None:
            self.note(place)
        for part in parts:
            self.note(part)
        if place in self._records and self._records[place].parts is None:
            own = tuple(self._records[part] for part in parts if part in self._records)
            self._records[place] = dataclasses.replace(self._records[place], parts=own)

    def _former(self) -> dict[Place, Any]:
        """Returns the former values of the changed places, without properties and items that methods have set."""
        former: dict[Place, Any] = {}  # the oldest value, because an item may be recorded by itself and with its list
        for record in self._records.values():
            if record.parts is None:
                for place, old in record.changed():
                    former.setdefault(place, old)
        return former

    def owners(self) -> set[int]:
        """Returns the identities of the objects that have changed."""
        return {place.identity for place in self._former()}

    def undo(self) -> None:
        """Undoes the changes of a branch that has raised an exception, which is the one that the user gets."""
        former = self._former()
        setters = [one for one in self._records.values() if one.parts is not None]
        with contextlib.suppress(Exception):
            undo({one.place: one.before for one in setters if not one.changes_parts() or one.is_elsewhere()})
        with contextlib.suppress(Exception):
            undo({**self._former(), **former})

    def found(self) -> dict[Place, Any]:
        """Returns the changed places with their new values, and undoes the changes.

        Objects that the branch has created itself stay as they are.
        """
        former = self._former()
        setters = [(one, one.changes_parts()) for one in self._records.values() if one.parts is not None]
        now = {place: place.read() for place in (*(record.place for record, _ in setters), *former)}
        returned = {place: _copied(value) for place, value in now.items()}  # lists whose items are undone next
        undo(former)
        by_setter = {one.place: one.before for one, changes_parts in setters if not changes_parts or one.is_elsewhere()}
        undo(by_setter)
        former = {**by_setter, **former}  # what a setter stores in its object is undone and set after it
        undo(former)
        changed = [(place, old, now[place]) for place, old in former.items() if differ(now[place], old)]
        hidden = [place for place, old in by_setter.items() if is_undefined(old) and is_undefined(now[place])]
        known = _reachable(self._body, {place.identity for place in (*hidden, *(place for place, _, _ in changed))})
        _refuse_hidden([place for place in hidden if place.identity in known])
        for place, _, new in changed:
            if place.identity not in known:
                place.put(new)
        return {place: returned[place] for place, *_ in changed if place.identity in known}


def _refuse_hidden(places: Sequence[Place]) -> None:
    """Raises an error if a branch sets a property that has no getter, and whose setter changes another object."""
    for place in places:
        raise InvalidArgumentError.of(
            place.name,
            found="a branch or a loop body that a tensor controls sets a property that cannot be read",
            rule="the value before is restored and joined with the new one, which needs a getter",
            remedy="give the property a getter, or assign the attribute that the setter changes",
        )


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(one) for key, one in value.items()} if type(value) is dict else value


class _Threads(threading.local):
    def __init__(self) -> None:
        self.changes: list[Changes] = []


_threads: Final = _Threads()


@contextmanager
def recording(body: Callable[..., object]) -> Iterator[Changes]:
    """Records what a branch or a loop body changes during a ``with`` block; undoes it if the block raises an error."""
    changes, outer = Changes(body), _threads.changes
    try:
        _threads.changes = [*outer, changes]
        yield changes
    except BaseException:
        changes.undo()
        raise
    finally:
        _threads.changes = outer


def changing(owner: Any, attribute: str | None, name: str) -> Any:
    """Returns an object of which converted code is about to change an attribute, or items (if `attribute` is None)."""
    if not _threads.changes or _threads.changes[-1].depth != depth():
        return owner
    owner = _behind_proxy(owner)
    frame = sys._getframe(1)
    name = f"{name} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    if attribute is None and not (isinstance(owner, (list, dict)) or is_buffer(owner)):
        return _Items(owner, name) if hasattr(type(owner), "__setitem__") else owner
    changes = _threads.changes[-1]
    if attribute is not None:
        place = Place(owner, "attribute", attribute, name, id(owner))
        if is_property(type(owner), attribute):
            changes.note_parts(owner, name, place)
        else:
            changes.note(place)
        return owner
    changes.note(Place(owner, "content", None, name, id(owner)))
    if has_setter(type(owner)):
        changes.note_parts(owner, name, None)
    return owner


def _behind_proxy(owner: Any) -> Any:
    """Returns the object behind a weak proxy, because other names refer to the object itself; others unchanged."""
    # Not `isinstance`, which asks the object behind the proxy for its class, and fails if the object is gone.
    return owner.__setattr__.__self__ if type(owner) in weakref.ProxyTypes else owner


class _Items:
    """An object with items, of another class than list and dict, of which converted code is about to change one."""

    def __init__(self, owner: Any, name: str) -> None:
        self._whole = Place(owner, "content", None, name, id(owner))

    def __getitem__(self, key: object) -> Any:
        return self._whole.owner[key]

    def __setitem__(self, key: object, value: object) -> None:
        self._note(key)
        self._whole.owner[key] = value

    def __delitem__(self, key: object) -> None:
        self._note(key)
        del self._whole.owner[key]

    def _note(self, key: object) -> None:
        can_note = isinstance(key, Hashable) and not isinstance(key, (slice, tuple))
        place = self._whole.item(key) if can_note else None
        owner, changes = self._whole.owner, _threads.changes[-1]
        if has_setter(type(owner)):
            changes.note_parts(owner, self._whole.name, place)
        elif place is not None:
            changes.note(place)


def _reachable(body: Callable[..., object], wanted: set[int]) -> set[int]:
    """Returns which of the objects with the given ids existed before the branch, which has been undone, was traced.

    Such an object is referred to, directly or not, by a variable that the branch reads. Of modules, classes and global
    names, only those are searched that the code of the converted functions names.
    """
    found: set[int] = set()
    todo: deque[Any] = deque([body])
    seen: set[int] = set()
    names: set[str] = set()
    while todo and found < wanted and len(seen) < _MOST_OBJECTS:
        one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        parts = list(_parts(one, names))
        if type(one) is types.FunctionType and "ag__" in one.__code__.co_freevars:
            own = list(_names(one.__code__))
            names.update(own)
            parts += [one.__globals__[name] for name in own if name in one.__globals__]
        found.update(wanted.intersection(map(id, parts)))
        todo.extend(filter(gc.is_tracked, parts))  # others, like numbers and texts, refer to no list, dict or array
    return found


def _parts(one: Any, names: set[str]) -> Iterable[object]:
    """Returns the objects that an object refers to; of a module or a class, its attributes of the given names."""
    if type(one) in weakref.ProxyTypes:
        with contextlib.suppress(ReferenceError):
            return (_behind_proxy(one),)
        return ()
    if isinstance(one, weakref.ReferenceType):
        return (one(),)
    if isinstance(one, types.FunctionType):
        return one.__closure__ or ()
    if isinstance(one, types.ModuleType):
        return [value for name, value in vars(one).items() if name in names]
    if isinstance(one, type):
        return [value for base in one.__mro__ for name, value in vars(base).items() if name in names]
    return () if isinstance(one, (types.CodeType, jax.Array)) else gc.get_referents(one)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)
