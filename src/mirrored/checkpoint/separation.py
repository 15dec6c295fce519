"""Gives each place its own container, where the program has one at several places and the checkpoint has several.

A program that begins with ``Checkpoint(params=params, ema=params)`` has one dict at two places, and replaces it by two
dicts in the first step. A restore at the beginning of the next run puts a copy of the dict at one of the places, so
that each has its own values. Only containers of values are copied: dicts, lists, dataclasses and pytrees of arrays,
numbers and further containers. Variables, modules, optimizers and iterators that are one object have one value;
`conflicts` returns those of which the checkpoint has several.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import logging
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import jax
import numpy as np

from mirrored.checkpoint.graph import Graph, paths_to
from mirrored.checkpoint.leaves import GeneratorLeaf, PositionLeaf, Undo
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import Conflict, paths_above, resolve
from mirrored.checkpoint.objects import is_container, is_node, parts_of
from mirrored.checkpoint.places import Attribute, Item, Place, Root, is_frozen
from mirrored.checkpoint.saved_numbers import is_number

_log: Final = logging.getLogger("mirrored.checkpoint")
_PASSES: Final = 64  # of nested containers; each pass copies one level
_WITH_IDENTITY: Final = ("mirrored.", "keras.", "tensorflow.", "flax.nnx.", "flax.linen.")


@dataclasses.dataclass(frozen=True)
class Separated:
    """The containers that `separate` has copied.

    Attributes:
        copies: The paths where a copy is, with the path where the original is; with None if that is a dataclass of
            which `log_replaced` warns.
        undo: Puts the originals back.
    """

    copies: dict[str, str | None]
    undo: Undo


def separate(
    look: Callable[[], Graph],
    manifest: Manifest,
    waiting: set[str],
    may_copy: Callable[[Graph, str, Iterable[str]], bool] = lambda graph, name, paths: True,
) -> Separated:
    """Puts copies of shared containers where the checkpoint has other ones.

    Args:
        look: Returns the state of the program.
        manifest: The manifest of the checkpoint.
        waiting: The names in the checkpoint that are not restored yet.
        may_copy: From the state of the program, a container's name and its other paths to whether these may get copies.
    """
    copies = _Copies()
    try:
        for _ in range(_PASSES):
            saved = _SavedPaths(look(), manifest, waiting)
            found = [
                one for one in saved.shared() if may_copy(saved.graph, one.name, one.others) and saved.is_separable(one)
            ]
            if not any([copies.put(shared, saved.graph) for shared in found]):
                break
    except BaseException:
        copies.undo()
        raise
    return Separated(copies.paths, copies.undo)


class _Copies:
    """The copies of shared containers.

    The places of which the checkpoint has one container get one copy. So a copy of a container that contains itself
    contains itself, too.

    Attributes:
        paths: As in `Separated`.
    """

    def __init__(self) -> None:
        self.paths: dict[str, str | None] = {}
        self._made: dict[tuple[int, str], Any] = {}
        self._originals: list[Any] = []  # so that their ids are not used again
        self._undos: list[Undo] = []
        self._refused: set[str] = set()

    def undo(self) -> None:
        for one in reversed(self._undos):
            one()

    def put(self, shared: _Shared, graph: Graph) -> bool:
        """Puts copies of a container at its places; returns whether that was possible at any of them."""
        self._originals.append(shared.value)
        before = len(self._undos)
        for path, source in shared.others.items():
            place, key = graph.alias_places[path], (id(shared.value), source)
            if path in self._refused or not _holds(place, shared.value):
                continue
            if key not in self._made:
                self._made[key] = _copied(shared.value)
            done = None if self._made[key] is None else _put(place, self._made[key])
            if done is None:
                self._refused.add(path)
            else:
                self._undos.append(done)
                self.paths[path] = None if path in graph.repeated else shared.path
        return len(self._undos) > before


class SharedPlaces:
    """The places of shared objects, at which a restore puts what it has put in place of immutable ones.

    An immutable mapping or object gets values by being replaced, at its first place.

    Args:
        graph: The state of the program before the restore.
    """

    def __init__(self, graph: Graph) -> None:
        values = {graph.names[number]: value for number, value in graph.visited.items()} if graph.alias_places else {}
        named = [
            (graph.places[name], place, values[name])
            for path, place in graph.alias_places.items()
            if (name := graph.aliases.get(path)) in values and name in graph.places
        ]
        # Parts of Keras objects have the places of these objects, which are changed in place.
        self._places = [one for one in named if _holds(one[0], one[2]) and _holds(one[1], one[2])]

    def follow(self, undos: list[Undo]) -> None:
        """Puts the new objects at the other places of the replaced ones; adds what undoes it to `undos`."""
        for _ in range(_PASSES):
            before = len(undos)
            for first, place, value in self._places:
                if _holds(place, value) and not _holds(first, value):
                    done = _put(place, first.get())
                    undos.extend([] if done is None else [done])
            if len(undos) == before:
                return


def log_copies(called: str, copies: Mapping[str, str | None]) -> None:
    """Logs which parts of a checkpoint are copies now, because the program may still use the original.

    Args:
        called: The function that the user called.
        copies: As in `Separated`.
    """
    for name, original in copies.items():
        if "/" not in name and original is not None:
            _log.warning(
                "%s: the program passes one object as %r and %r, of which the checkpoint has separate values; "
                "checkpoint.%s is a copy with its own values now. Continue with that: %s = checkpoint.%s",
                *(called, original, name, name, name, name),
            )


def conflicts(graph: Graph, manifest: Manifest, waiting: set[str]) -> tuple[Conflict, ...]:
    """Returns the objects that are one object in the program and several in the checkpoint.

    Args:
        graph: The state of the program.
        manifest: The manifest of the checkpoint.
        waiting: The names in the checkpoint that are not restored yet.
    """
    found = [
        Conflict(path, shared.path, source, is_position=False)
        for shared in _SavedPaths(graph, manifest, waiting, needs_leaves=True).shared()
        for path, source in shared.others.items()
    ]
    # Iterators and generators of libraries have a name for each of their paths.
    first: dict[int, tuple[str, str]] = {}
    others = graph.other_names(has_former=manifest.has_former_names)
    for name, leaf in graph.leaves.items():
        if not isinstance(leaf, (PositionLeaf, GeneratorLeaf)):
            continue
        sources = (resolve(path, manifest) for path in paths_to(name, others))
        source = next((one for one in sources if one in waiting), None)
        if source is None:
            continue
        other, saved = first.setdefault(leaf.owner, (name, source))
        if manifest.leaves[saved].value != manifest.leaves[source].value:
            found.append(Conflict(name, other, source, is_position=True))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class _Shared:
    """An object that is at several places in the program, and of which the checkpoint has several.

    Attributes:
        value: The object.
        name: Its name in the program.
        path: The place that keeps it.
        source: The name in the checkpoint of what is at that place.
        others: The names in the checkpoint of what is at the other places, by place.
    """

    value: Any
    name: str
    path: str
    source: str
    others: dict[str, str]


class _SavedPaths:
    """Finds what a checkpoint has for each place of an object.

    Args:
        graph: The state of the program.
        manifest: The manifest of the checkpoint.
        waiting: The names in the checkpoint that are not restored yet.
        needs_leaves: Whether to leave out paths in the checkpoint without values of their own.
    """

    def __init__(self, graph: Graph, manifest: Manifest, waiting: set[str], *, needs_leaves: bool = False) -> None:
        self.graph, self._manifest = graph, manifest
        leaves = manifest.leaves.keys() - set(manifest.carried)
        self._leaves = leaves | paths_above(leaves)
        self._known = set(self._leaves)
        if not needs_leaves:
            self._known |= {*manifest.aliases, *paths_above(manifest.aliases), *manifest.empty}
        left = leaves & waiting
        self._waiting = self._known if waiting >= manifest.leaves.keys() else left | paths_above(left)
        self._others = graph.other_names(has_former=manifest.has_former_names)
        # A manifest of an earlier version does not tell whether it has one object at the places in `repeated`.
        tells = not needs_leaves and manifest.overlaps is not None
        self._aliases = {**graph.aliases, **graph.repeated} if tells else graph.aliases

    def shared(self) -> Iterator[_Shared]:
        """Yields the objects at several places of which the checkpoint has several."""
        paths: dict[str, list[str]] = {}
        for path, name in self._aliases.items() if self._waiting else ():
            if path in self.graph.alias_places:
                paths.setdefault(name, []).append(path)
        values = {self.graph.names[number]: value for number, value in self.graph.visited.items()} if paths else {}
        for name, others in paths.items():
            of_others = {other: paths for other, paths in self._others.items() if other != name}
            sources = {path: self._source(path, of_others) for path in (name, *others)}
            known = [(path, source) for path, source in sources.items() if source is not None]
            if len({source for _, source in known}) < 2:
                continue
            first, kept = known[0]
            apart = {path: one for path, one in known if one != kept and one in self._waiting and path != name}
            if apart:
                is_repeated = others[0] in self.graph.repeated
                value = self.graph.alias_places[others[0]].get() if is_repeated else values.get(name)
                yield _Shared(value, name, first, kept, apart)

    def _source(self, path: str, of_others: Mapping[str, list[str]]) -> str | None:
        """Returns the checkpoint's path of the object at one path of the program, or None.

        `of_others` are the other paths of the other objects.
        """
        found = (resolve(one, self._manifest) for one in paths_to(path, of_others))
        return next((one for one in found if one in self._known), None)

    def is_separable(self, shared: _Shared) -> bool:
        """Returns whether an object can be copied, because nothing in it would be shared by its copies wrongly."""
        others = [self.graph.alias_places[path] for path in shared.others]
        if not all(_holds(place, shared.value) for place in others):  # of a Keras object
            return False
        holders = [place.holder() for place in others]
        return all(
            self._is_separable(shared.value, shared.source, one, (holder,))
            for holder in holders
            for one in shared.others.values()
        )

    def _is_separable(self, value: Any, one: str, other: str, around: tuple[Any, ...]) -> bool:
        """Returns whether a copy of `value` is as good as the original; `around` are the objects around it."""
        if one == other or not {one, other} <= self._known or any(value is holder for holder in around[1:]):
            return True
        if value is None or is_number(value) or isinstance(value, (str, bytes, np.ndarray, jax.Array)):
            return True
        if not _is_of_values(value, around[-1]):
            return not {one, other} <= self._leaves
        return all(
            self._is_separable(part.value, self._inside(one, part.name), self._inside(other, part.name), inside)
            for inside in [(*around, value)]
            for part in parts_of(value, Root({"value": value}, "value"))
        )

    def _inside(self, path: str, name: str) -> str:
        return resolve(f"{path}/{name}", self._manifest)


def _is_of_values(value: object, holder: object) -> bool:
    """Returns whether `value` is a container whose copy is as good as the original, if the same holds for its items.

    Args:
        value: The object.
        holder: The object in which it is.
    """
    kind = type(value)
    if _is_of_nnx(value, "State") or (_is_of_nnx(value, "Variable") and _is_of_nnx(holder, "State")):
        return True
    if any(f"{one.__module__}.".startswith(_WITH_IDENTITY) for one in kind.__mro__):
        return False
    if is_container(value) or isinstance(value, (SimpleNamespace, argparse.Namespace)):
        return True
    # A class with other bases is, for example, a module.
    is_plain = all(dataclasses.is_dataclass(one) or "__attrs_attrs__" in vars(one) for one in kind.__mro__[:-1])
    return is_plain or (is_node(value) and (is_frozen(value) or hasattr(value, "__dict__")))


def _is_of_nnx(value: object, name: str) -> bool:
    return any(one.__name__ == name and f"{one.__module__}.".startswith("flax.nnx.") for one in type(value).__mro__)


def _copied(value: Any) -> Any | None:
    """Returns a shallow copy of a container: another one with the same items; None if its class makes no such copy."""
    with contextlib.suppress(Exception):  # of code of the user's class
        made = _copied_by_its_class(value)
        if type(made) is type(value) and _has_same_items(made, value):
            return made
    return None


def _has_same_items(made: Any, value: Any) -> bool:
    """Returns whether a copy of a dict, list or deque has the items of the original; True for other containers."""
    if isinstance(value, (dict, UserDict)):
        return list(made) == list(value) and all(made[key] is value[key] for key in value)
    if isinstance(value, (list, deque, UserList)):
        return len(made) == len(value) and all(one is other for one, other in zip(made, value, strict=True))
    return True


def _copied_by_its_class(value: Any) -> Any:
    if not isinstance(value, (dict, list, deque, UserDict, UserList)) and not dataclasses.is_dataclass(value):
        if is_node(value):
            # An inner dict of an `nnx.State` is in a new state at each access, so that it is copied here, too.
            is_state = _is_of_nnx(value, "State")
            items, structure = jax.tree.flatten(
                value, is_leaf=lambda one: _is_of_nnx(one, "Variable") if is_state else one is not value
            )
            return jax.tree.unflatten(structure, items)
    made = copy.copy(value)
    attributes = getattr(made, "__dict__", None)
    if getattr(value, "__dict__", None) is value:  # a dict whose items are its attributes
        made.__dict__ = made
    elif isinstance(value, Mapping) and isinstance(attributes, dict) and not isinstance(value, (dict, UserDict)):
        # The items of a mapping of the program's own class are in such an attribute.
        attributes.update({name: copy.copy(one) for name, one in attributes.items() if type(one) in (dict, list)})
    return made


def _holds(place: Place, value: object) -> bool:
    """Returns whether a value is at a place; the place of a part of a Keras object does not lead to the part."""
    try:
        return place.get() is value
    except (AttributeError, LookupError, TypeError):
        return False


def _put(place: Place, value: object) -> Undo | None:
    """Puts a value at a place; returns what undoes it, or None if the place cannot be set.

    A tuple or frozen dataclass around the place is replaced by a copy; the undo puts the original back.
    """
    places = [place]
    while isinstance(places[-1], (Attribute, Item)):
        places.append(places[-1].parent)
    before = [one.get() for one in places]
    with contextlib.suppress(Exception):  # a property without a setter, or a container that cannot be changed
        place.put(value)
    changed = next((at for at in reversed(range(len(places))) if places[at].get() is not before[at]), None)
    if changed is None or place.get() is before[0]:
        return None
    return lambda: places[changed].put(before[changed])
