"""What an object is made of, for the names in a checkpoint: its parts, each with a name and a place.

Dicts, lists and tuples give their entries, other objects their attributes (public ones first). Objects of the standard
library, of JAX, NumPy and optax, functions, classes, strategies and datasets have no parts.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeGuard

import jax

from mirrored.checkpoint.places import Attribute, Item, Place, defines, is_frozen
from mirrored.variables import Variable

# Packages whose objects hold no state that a checkpoint saves (subclasses in other packages do).
_CLOSED: Final = frozenset(sys.stdlib_module_names) | {
    "absl",
    "grain",
    "jax",
    "jaxlib",
    "numpy",
    "optax",
    "orbax",
    "scipy",
}
# Parts of mirrored that hold variables of others (a compiled function, a tape), or none.
_CLOSED_HERE: Final = frozenset(
    {
        "_jax",
        "analysis",
        "cluster",
        "collectives",
        "compilation",
        "data",
        "runtime",
        "strategies",
        "tape",
        "topology",
        "values",
    }
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of an object: its name in the checkpoint and where it sits."""

    name: str
    value: Any
    place: Place


class CheckpointSlotGroup(Protocol):
    """Variables of an optimizer that share state (a step counter)."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables."""
        ...

    @property
    def shared(self) -> Mapping[str, Variable]:
        """The state that they share, by label."""
        ...


class OptimizerState(Protocol):
    """The state that an optimizer has made so far."""

    @property
    def scalars(self) -> Mapping[str, Variable]:
        """Its own: the step, the learning rate."""
        ...

    @property
    def groups(self) -> tuple[CheckpointSlotGroup, ...]:
        """The variables that have slots, in the order in which they came."""
        ...


class HasSlots(Protocol):
    """An optimizer: its slots are saved under the names of the variables that they belong to."""

    def made(self) -> OptimizerState:
        """The state made so far; makes nothing."""
        ...

    def slots(self, variable: Variable) -> Mapping[str, Variable]:
        """The slots of one variable, by label."""
        ...

    def build(self, var_list: Any) -> None:
        """Makes the slots of variables."""
        ...


class HasParts(Protocol):
    """An object that says itself what it is made of."""

    def checkpoint_parts(self, place: Place) -> Iterator[Part]:
        """Its parts, given where it sits."""
        ...


def has_slots(value: Any) -> TypeGuard[HasSlots]:
    """Whether it is an optimizer."""
    return defines(value, "made", "slots", "build")


def _has_parts(value: Any) -> TypeGuard[HasParts]:
    return defines(value, "checkpoint_parts")


def parts_of(value: Any, place: Place) -> Iterator[Part]:
    """The parts of `value`, which sits at `place`; nothing if it has none."""
    if _has_parts(value):
        yield from value.checkpoint_parts(place)
    elif isinstance(value, Mapping):
        for index, (key, one) in enumerate(value.items()):
            yield Part(_key_name(key, index), one, Item(place, key))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for index, (name, one) in enumerate(zip(value._fields, value, strict=True)):
            yield Part(name, one, Item(place, index))
    elif isinstance(value, (list, tuple, deque)):
        for index, one in enumerate(value):
            yield Part(str(index), one, Item(place, index))
    elif is_open(value):
        for name, one in _attributes(value):
            yield Part(name, one, Attribute(place, name))


def is_open(value: Any) -> bool:
    """Whether an object's attributes are looked at."""
    if isinstance(value, (type, enum.Enum)):
        return False
    package, _, rest = type(value).__module__.partition(".")
    if package == "mirrored":
        return rest.partition(".")[0] not in _CLOSED_HERE
    return package not in _CLOSED


def is_container(value: Any) -> bool:
    """Whether it is a dict, list or tuple."""
    return isinstance(value, (Mapping, list, tuple, deque))


def is_node(value: Any) -> bool:
    """Whether JAX takes it apart (a pytree node): such an object's numbers are part of its structure, not state."""
    return not jax.tree_util.all_leaves([value])


def is_shareable(value: Any) -> bool:
    """Whether two names for it are names of one thing that changes: not so for tuples and what is frozen."""
    return not isinstance(value, (tuple, MappingProxyType, jax.Array)) and not is_frozen(value)


def can_keep(value: Any) -> bool:
    """Whether an attribute may be put into an object: a variable, or one of Keras' or this package's kind."""
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return bool(packages & {"keras", "mirrored"}) and hasattr(value, "__dict__")


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        # Not by `getattr`: objects with slots may hand unknown attributes on to a value that they hold (nnx.Variable).
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for kind in type(value).__mro__:
        for name in _slots(kind):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.setdefault(name, getattr(value, name))
    for private in (False, True):
        for name, one in found.items():
            if name.startswith("_") is private and not name.startswith(("__", "_mirrored_")):
                yield name, one


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _key_name(key: Any, index: int) -> str:
    """A dict's key as a name: by value where it has one that is the same in every process, else by position."""
    if isinstance(key, str):
        return key.replace("%", "%25").replace("/", "%2F")
    if isinstance(key, (bool, int, float)) or key is None:
        return str(key)
    return key.name if isinstance(key, enum.Enum) else f"#{index}"
