"""The parts of an object, each with its name in a checkpoint and its place.

The parts of dicts, lists and tuples are their entries; those of other objects are their attributes, public ones first.
Objects of the standard library, of JAX, NumPy and optax, functions, classes, strategies and datasets have no parts.
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

# Packages whose objects hold no state that a checkpoint saves. Subclasses in other packages can hold state.
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
# Subpackages of mirrored whose objects hold no variables, or only variables that belong to other objects (a compiled
# function, a tape).
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
    """A part of an object: its name in the checkpoint, its value and its place."""

    name: str
    value: Any
    place: Place


class CheckpointSlotGroup(Protocol):
    """A group of variables for which an optimizer keeps shared state, such as a step counter."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables."""
        ...

    @property
    def shared(self) -> Mapping[str, Variable]:
        """The shared state, by label."""
        ...


class OptimizerState(Protocol):
    """The state that an optimizer has created so far."""

    @property
    def scalars(self) -> Mapping[str, Variable]:
        """The state of the optimizer itself: the step, the learning rate."""
        ...

    @property
    def groups(self) -> tuple[CheckpointSlotGroup, ...]:
        """The groups of variables that have slots, in the order of their creation."""
        ...


class HasSlots(Protocol):
    """An optimizer. Its slots are saved under the names of the variables that they belong to."""

    def made(self) -> OptimizerState:
        """Returns the state created so far, without creating any."""
        ...

    def slots(self, variable: Variable) -> Mapping[str, Variable]:
        """Returns the slots of one variable, by label."""
        ...

    def build(self, var_list: Any) -> None:
        """Creates the slots of variables."""
        ...


class HasParts(Protocol):
    """An object that defines its own parts."""

    def checkpoint_parts(self, place: Place) -> Iterator[Part]:
        """Yields the parts of this object, which is at `place`."""
        ...


def has_slots(value: Any) -> TypeGuard[HasSlots]:
    """Returns whether `value` is an optimizer."""
    return defines(value, "made", "slots", "build")


def _has_parts(value: Any) -> TypeGuard[HasParts]:
    return defines(value, "checkpoint_parts")


def parts_of(value: Any, place: Place) -> Iterator[Part]:
    """Yields the parts of `value`, which is at `place`."""
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
    """Returns whether the attributes of an object are its parts."""
    if isinstance(value, (type, enum.Enum)):
        return False
    package, _, rest = type(value).__module__.partition(".")
    if package == "mirrored":
        return rest.partition(".")[0] not in _CLOSED_HERE
    return package not in _CLOSED


def is_container(value: Any) -> bool:
    """Returns whether `value` is a dict, list or tuple."""
    return isinstance(value, (Mapping, list, tuple, deque))


def is_node(value: Any) -> bool:
    """Returns whether `value` is a pytree node. The numbers of such an object are part of its structure, not state."""
    return not jax.tree_util.all_leaves([value])


def is_shareable(value: Any) -> bool:
    """Returns whether two references to `value` share state. Immutable values, such as tuples, share none."""
    return not isinstance(value, (tuple, MappingProxyType, jax.Array)) and not is_frozen(value)


def can_keep(value: Any) -> bool:
    """Returns whether we can set an attribute on `value`: its class derives from one of Keras or mirrored."""
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return bool(packages & {"keras", "mirrored"}) and hasattr(value, "__dict__")


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        # Not `getattr`: objects with slots can forward unknown attributes to a value that they hold (nnx.Variable).
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
    """Converts a dict key to a name: its value if that is the same in every process, otherwise its position."""
    if isinstance(key, str):
        return key.replace("%", "%25").replace("/", "%2F")
    if isinstance(key, (bool, int, float)) or key is None:
        return str(key)
    return key.name if isinstance(key, enum.Enum) else f"#{index}"
