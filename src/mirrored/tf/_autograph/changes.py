"""Finds the items and attributes that a branch or a loop body changes, so that they become part of its state.

AutoGraph's passes know the names that a branch assigns. Items (`a[i + 1] = x`) and attributes are found here, while the
branch is traced: converted code announces each object before it changes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import jax
import numpy as np
from malt.operators.variables import Undefined

from mirrored._blocks import contextmanager
from mirrored._jax.traces import Tracer
from mirrored._jax.trees import tree_flatten
from mirrored.tf._autograph.effects import depth
from mirrored.tf._autograph.state import is_undefined
from mirrored.tf._errors import InvalidArgumentError

_MOST_OBJECTS = 20_000  # objects that the search for a changed object visits at most


@dataclasses.dataclass(frozen=True)
class Place:
    """An attribute, an item, or the whole content of a list or array, which a branch or a loop body changes.

    The kind "own" is an attribute that is read and written without the property or `__setattr__` of the class; all
    attributes of this kind together are the kind "state".
    """

    owner: Any = dataclasses.field(compare=False)
    kind: Literal["attribute", "item", "content", "own", "state"]
    key: Any
    name: str = dataclasses.field(compare=False)
    identity: int

    def __str__(self) -> str:
        return self.name

    def read(self) -> Any:
        """Returns the current value, or AutoGraph's marker of an undefined variable."""
        try:
            if self.kind == "attribute":
                return getattr(self.owner, self.key)
            if self.kind == "state":
                return dict(vars(self.owner))
            if self.kind == "own":
                return vars(self.owner).get(self.key, _default(self))
            if self.kind == "content":
                return self.owner.copy()
            if isinstance(self.owner, dict):
                return dict.get(self.owner, self.key, Undefined(self.name))  # not `[]`, which adds to a `defaultdict`
            return self.owner[self.key]
        except (AttributeError, LookupError):
            return Undefined(self.name)

    def item(self, key: object) -> Place:
        """Returns the place of an item of the same object."""
        return self._part("item", key, f"[{key!r}]")

    def own(self, key: str) -> Place:
        """Returns the place of an attribute of the same object, without the properties of its class."""
        return self._part("own", key, f".{key}")

    def _part(self, kind: Literal["item", "own"], key: object, shown: str) -> Place:
        owner, at, where = self.name.partition(" at ")
        return Place(self.owner, kind, key, f"{owner}{shown}{at}{where}", self.identity)

    def write(self, value: object) -> None:
        """Sets the value, and records the former one for the branch or the loop body around this one."""
        if _threads.changes:
            _threads.changes[-1].note(self)
        if _is_buffer(self.owner) and any(isinstance(leaf, Tracer) for leaf in tree_flatten(value)[0]):
            raise InvalidArgumentError.of(
                self.name,
                found="items of a NumPy array are assigned where a tensor decides whether they are",
                rule="a NumPy array holds values that are known while tracing",
                remedy="use a list, or a tensor and tf.where or tf.tensor_scatter_nd_update",
            )
        self.put(value)

    def put(self, value: object) -> None:
        """Sets the value; removes the item or attribute if the value is undefined."""
        owner: Any = vars(self.owner) if self.kind == "own" else self.owner
        if self.kind == "content":
            _built_in(owner, "__setitem__")(owner, slice(None), value)
        elif is_undefined(value):
            with contextlib.suppress(AttributeError, KeyError):
                delattr(owner, self.key) if self.kind == "attribute" else _built_in(owner, "__delitem__")(
                    owner, self.key
                )
        elif self.kind == "attribute":
            setattr(owner, self.key, value)
        else:
            _built_in(owner, "__setitem__")(owner, self.key, value)


def _built_in(owner: object, method: str) -> Any:
    """Returns a method of a list, dict or array that is not written in Python, if there is one.

    The method of a subclass of `dict` may do more than store the item, and has run in the branch already.
    """
    kind = type(owner)
    plain = (base for base in kind.__mro__ if _is_container(base) and not _is_python(vars(base).get(method)))
    return getattr(next((base for base in plain if method in vars(base)), kind), method)


def _is_container(kind: type) -> bool:
    return issubclass(kind, (list, dict, np.ndarray))


def _is_python(method: object) -> bool:
    return isinstance(method, types.FunctionType)


@dataclasses.dataclass(frozen=True)
class _Record:
    """A list, dict or array, an attribute or an item, as it was before a branch or a loop body changed it."""

    place: Place
    before: Any
    parts: tuple[_Record, ...] = ()
    """What the object consists of, if a property or method written in Python changes it; then it counts instead."""

    def changed(self) -> Iterator[tuple[Place, Any]]:
        """Yields the places that may have changed, with their former values."""
        place, before = self.place, self.before
        if place.kind == "state":
            yield from _changed_attributes(place, before)
        elif place.kind == "content":
            yield from _changed_items(place, before)
        elif not any(True for part in self.parts for _ in part.changed()):
            yield place, before


def _changed_attributes(place: Place, before: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    for key in {**before, **vars(place.owner)}:
        own = place.own(key)
        old = before[key] if key in before else _default(own)
        if _differ(own.read(), old):
            yield own, old


def _default(own: Place) -> Any:
    """Returns the value that the class gives to an attribute which the object lacks."""
    found = getattr(type(own.owner), own.key, None)
    return Undefined(own.name) if found is None or hasattr(type(found), "__get__") else found


def _changed_items(place: Place, before: Any) -> Iterator[tuple[Place, Any]]:
    owner = place.owner
    if isinstance(before, dict):
        for key in {**before, **owner}:
            if key not in before or key not in owner or before[key] is not owner[key]:
                yield place.item(key), before.get(key, Undefined(place.name))
    elif isinstance(before, list) and len(owner) == len(before):
        for i, (old, now) in enumerate(zip(before, owner, strict=True)):
            if now is not old:
                yield place.item(i), old
    elif isinstance(before, list) or owner.tobytes() != before.tobytes():  # NaN equals NaN
        yield place, before


def _differ(one: object, two: object) -> bool:
    return one is not two and not (is_undefined(one) and is_undefined(two))


class Changes:
    """What one branch or loop body changes, except names.

    Args:
        body: The function of converted code that runs the branch or the body.
    """

    def __init__(self, body: Callable[..., object]) -> None:
        self._body = body
        self._records: dict[Place, _Record] = {}
        self.depth = depth()

    def note(self, place: Place) -> None:
        """Records the value of a place, unless an earlier value of it is recorded, or the owner refuses to show it."""
        if place not in self._records:
            with contextlib.suppress(Exception):  # from the user's `__getitem__` or property
                self._records[place] = _Record(place, place.read())

    def note_parts(self, owner: Any, name: str, place: Place | None) -> None:
        """Records the attributes of an object, and the lists, dicts and arrays in them, because code of its class runs.

        The code is that of a property or of `__setitem__`. It has run once in the branch, and is not to run again to
        undo and repeat what it did. If it changes none of these parts, it changes other objects: then the value of the
        property or item itself is read and set.

        Args:
            owner: The object.
            name: How the code refers to the object, for messages.
            place: The property or item; None if it is recorded anyway or cannot be.
        """
        state = Place(owner, "state", None, name, id(owner))
        places = [state] if hasattr(owner, "__dict__") else []
        for key, value in vars(owner).items() if places else ():
            if isinstance(value, (list, dict)) or _is_buffer(value):
                places.append(Place(value, "content", None, state.own(key).name, id(value)))
        for part in places:
            self.note(part)
        if place is not None and place not in self._records:
            self.note(place)
            if place in self._records:
                parts = tuple(self._records[part] for part in places if part in self._records)
                self._records[place] = dataclasses.replace(self._records[place], parts=parts)

    def found(self) -> dict[Place, Any]:
        """Returns the changed places with their new values, and undoes the changes.

        Objects that the branch has created itself stay as they are.
        """
        former: dict[Place, Any] = {}  # the oldest value, because an item may be recorded by itself and with its list
        for record in self._records.values():
            for place, old in record.changed():
                former.setdefault(place, old)
        now = {place: place.read() for place in former}
        for place, old in reversed(former.items()):
            if _differ(place.read(), old):
                place.put(old)
        changed = [(place, old, now[place]) for place, old in former.items() if _differ(now[place], old)]
        known = _reachable(self._body, {place.identity for place, _, _ in changed})
        for place, _, new in changed:
            if place.identity not in known:
                place.put(new)
        return {place: new for place, _, new in changed if place.identity in known}


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
        changes.found()
        raise
    finally:
        _threads.changes = outer


def changing(owner: Any, attribute: str | None, name: str) -> Any:
    """Returns an object of which converted code is about to change an attribute, or items (if `attribute` is None)."""
    if not _threads.changes or _threads.changes[-1].depth != depth():
        return owner
    frame = sys._getframe(1)
    name = f"{name} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    if attribute is None and not (isinstance(owner, (list, dict)) or _is_buffer(owner)):
        return _Items(owner, name) if hasattr(type(owner), "__setitem__") else owner
    changes = _threads.changes[-1]
    if attribute is not None:
        place = Place(owner, "attribute", attribute, name, id(owner))
        if _is_property(type(owner), attribute):
            changes.note_parts(owner, name, place)
        else:
            changes.note(place)
        return owner
    changes.note(Place(owner, "content", None, name, id(owner)))
    if _is_python(type(owner).__setitem__):
        changes.note_parts(owner, name, None)
    return owner


def _is_property(kind: type, name: str) -> bool:
    """Returns whether code of a class runs when an attribute is assigned, as that of a property."""
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    native = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return inspect.isdatadescriptor(found) and not isinstance(found, native)


def _is_buffer(owner: object) -> bool:
    """Returns whether an object is a NumPy array that can hold no tensors."""
    return isinstance(owner, np.ndarray) and owner.dtype != object


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
        if _is_python(type(owner).__setitem__):
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
        if isinstance(one, types.FunctionType) and "ag__" in one.__code__.co_freevars:
            own = list(_names(one.__code__))
            names.update(own)
            parts += [one.__globals__[name] for name in own if name in one.__globals__]
        found.update(wanted.intersection(map(id, parts)))
        todo.extend(filter(gc.is_tracked, parts))  # others, like numbers and texts, refer to no list, dict or array
    return found


def _parts(one: Any, names: set[str]) -> Iterable[object]:
    """Returns the objects that an object refers to; of a module or a class, its attributes of the given names."""
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
