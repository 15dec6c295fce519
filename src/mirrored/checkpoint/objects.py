"""Determines which attributes and items of objects a checkpoint saves, and under which names.

The parts of dicts, lists and tuples are their entries, and the attributes of a user's subclass of dict or list; those
of a `functools.partial` are its function and arguments; those of other objects are their attributes, public ones first.
Objects that are not open (`open_classes`), functions, classes, strategies and datasets have no parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import re
import sys
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

import jax
import numpy as np

from mirrored._jax.array_types import keeping_width
from mirrored._typing import HostArray
from mirrored.checkpoint.leaves import (
    ArrayLeaf,
    Leaf,
    RandomState,
    Undo,
    VariableLeaf,
    has_position,
    has_random_state,
    on_host,
)
from mirrored.checkpoint.open_classes import is_named_like_library, is_open, package_of
from mirrored.checkpoint.places import Argument, Attribute, Item, Place, defines, is_frozen
from mirrored.checkpoint.saved import Saved
from mirrored.errors import ContextError
from mirrored.variables import Variable

if TYPE_CHECKING:
    from keras import Layer

NEWEST: Final = 2
SINCE_RANDOM: Final = NEWEST + 2  # the states of `random.Random`
LEVEL: Final = SINCE_RANDOM  # the highest number of a `Part.since`, which `Manifest.level` states


@dataclasses.dataclass(frozen=True)
class Part:
    """An attribute or item of an object that a checkpoint saves: its name, its value, and where it is stored.

    Checkpoints of earlier versions can have it under another name, `former`. They do not have the state of one with a
    number `since`, which grows with the versions; such a part is visited last, so that what is in other objects, too,
    keeps its name there. Of a part with `only_variables`, a checkpoint saves no arrays, numbers and positions.
    """

    name: str
    value: Any
    place: Place
    former: str | None = None
    since: int = 0
    only_variables: bool = False


class CheckpointSlotGroup(Protocol):
    """Protocol of a group of variables for which an optimizer keeps common state, such as a step counter."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The model variables in this group."""
        ...

    @property
    def shared(self) -> Mapping[str, Variable]:
        """The optimizer state that all variables of the group share, as a dict keyed by label, such as ``"count"``."""
        ...

    @property
    def in_slot_order(self) -> tuple[Variable, ...]:
        """The model variables in this group, in the order in which their slot variables were created."""
        ...


class OptimizerState(Protocol):
    """Protocol of an optimizer's state: scalars, and slot variables by groups of model variables."""

    @property
    def scalars(self) -> Mapping[str, Variable]:
        """The optimizer state that belongs to no model variable, such as the step and the learning rate."""
        ...

    @property
    def groups(self) -> tuple[CheckpointSlotGroup, ...]:
        """The groups of model variables that have slot variables (such as momenta), in the order of their creation."""
        ...


class HasSlots(Protocol):
    """Protocol of an optimizer whose slot variables (such as momenta) a checkpoint saves by model variable."""

    def made(self) -> OptimizerState:
        """Returns the state that the optimizer has created so far, without creating more."""
        ...

    def slots(self, variable: Variable) -> Mapping[str, Variable]:
        """Returns the slot variables (such as momenta) of one model variable, as a dict keyed by label."""
        ...

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the slot variables (such as momenta) for the given model variables."""
        ...


class HasParts(Protocol):
    """Protocol of objects that choose for themselves which of their attributes or items a checkpoint saves."""

    def checkpoint_parts(self, place: Place) -> Iterator[Part]:
        """Yields the values inside this object that a checkpoint saves, each with its name and location."""
        ...


def has_slots(value: object) -> TypeGuard[HasSlots]:
    """Returns whether `value` is an optimizer whose slot variables a checkpoint can save."""
    return defines(value, "made", "slots", "build")


def has_checkpoint_parts(value: object) -> TypeGuard[HasParts]:
    """Returns whether `value` has `checkpoint_parts`, the method that yields the values to save.

    For example, a `Checkpoint` inside another one has this method.
    """
    return defines(value, "checkpoint_parts")


def parts_of(value: object, place: Place) -> Iterator[Part]:
    """Yields the attributes or items of an object that a checkpoint saves, each with its name and location."""
    if has_checkpoint_parts(value):
        yield from value.checkpoint_parts(place)
    elif isinstance(value, Mapping):
        for index, (key, one) in enumerate(value.items()):
            text = _key_text(key)
            former = f"#{index}" if isinstance(key, (tuple, frozenset, np.integer, bytes)) else None
            yield Part(f"#{index}" if text is None else _escaped(text), one, Item(place, key), former)
        yield from _attribute_parts(value, place)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for index, (name, one) in enumerate(zip(value._fields, value, strict=True)):
            yield Part(name, one, Item(place, index))
    elif is_container(value):
        for index, one in enumerate(value):
            yield Part(str(index), one, Item(place, index))
        yield from _attribute_parts(value, place)
    elif isinstance(value, functools.partial):
        yield from _parts_of_partial(value, place)
    elif is_open(value):
        yield from _parts_of_open(value, place)


def _parts_of_open(value: object, place: Place) -> Iterator[Part]:
    """Yields the attributes of an object of the program, and the state of a random generator of its own class."""
    is_random = False
    if has_random_state(value) and not has_position(value):
        is_random = True
        yield Part("%state", RandomState(value), place, since=SINCE_RANDOM)  # no attribute has such a name
    since = NEWEST if is_named_like_library(value) else 0
    for name, one in attributes_of(value):
        if not (is_random and name == "gauss_next"):  # a part of the state
            yield Part(name, one, Attribute(place, name), since=since)


def _attribute_parts(value: object, place: Place) -> Iterator[Part]:
    """Yields the attributes of an object of a user's subclass of dict, list or deque, besides its items.

    Leaves out attributes that are items, too, with which such classes offer ``config.rate``, and a `UserDict`'s dict.
    """
    if not isinstance(value, (dict, list, deque, UserDict)) or not is_open(value) or package_of(value) == "keras":
        return
    names: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
    for name, one in () if getattr(value, "__dict__", None) is value else attributes_of(value):
        if isinstance(value, UserDict) and name == "data":
            continue
        if name not in names:
            yield Part(name, one, Attribute(place, name), since=NEWEST)
        elif names[name] is not one:
            yield Part(f"%{name}", one, Attribute(place, name), since=NEWEST)  # no item has such a name


def _parts_of_partial(value: functools.partial[Any], place: Place) -> Iterator[Part]:
    yield Part("func", value.func, Attribute(place, "func"))
    for index, one in enumerate(value.args):
        yield Part(f"args/{index}", one, Argument(place, index))
    for part in parts_of(value.keywords, Attribute(place, "keywords")):
        yield dataclasses.replace(part, name=f"keywords/{part.name}")


def is_container(value: object) -> TypeGuard[Iterable[Any]]:
    """Returns whether `value` is a dict, list or tuple."""
    return isinstance(value, (Mapping, list, tuple, deque)) or type(value) is UserList


def is_node(value: object) -> bool:
    """Returns whether JAX treats `value` as an inner node of a pytree, not as a leaf.

    A checkpoint does not save the numeric attributes of such an object.
    """
    return not jax.tree_util.all_leaves([value])


def is_shareable(value: object) -> bool:
    """Returns whether an object is mutable, so that two references to it share state."""
    return not isinstance(value, (tuple, MappingProxyType, jax.Array)) and not is_frozen(value)


def attributes_of(value: object) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of an object's attributes, public ones first."""
    try:
        # Not `getattr`, also of slots: objects can forward unknown attributes to a value that they hold (nnx.Variable).
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for kind in type(value).__mro__:
        for name in _slots(kind):
            slot: Any = kind.__dict__.get(name)
            if hasattr(slot, "__get__") and name not in ("__dict__", "__weakref__"):
                with contextlib.suppress(AttributeError):  # a slot that is not assigned yet
                    found.setdefault(name, slot.__get__(value, type(value)))
    for private in (False, True):
        for name, one in found.items():
            if name.startswith("_") is private and not name.startswith(("__", "_mirrored_")):
                yield name, one


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    prefix = f"_{kind.__name__.lstrip('_')}"  # of Python's own names of private attributes
    return tuple(
        f"{prefix}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in ((slots,) if isinstance(slots, str) else slots)
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _key_text(key: object) -> str | None:
    """Converts a dict key to a text that is the same in every process; returns None if there is no such text.

    An item whose key has no text is named by the index of the key in the dict.
    """
    if isinstance(key, str):
        return str.__str__(key)  # of an enum of strings, the string
    if isinstance(key, (bool, int, float, bytes)) or key is None:
        return str(key)
    if isinstance(key, enum.Enum):
        return key.name
    if isinstance(key, np.integer):
        return str(int(key))
    if not isinstance(key, (tuple, frozenset)):
        return None
    texts = [repr(str.__str__(one)) if isinstance(one, str) else _key_text(one) for one in key]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    return f"({', '.join(known)})" if isinstance(key, tuple) else f"{{{', '.join(sorted(known))}}}"


# The state of Keras objects in checkpoints, found without importing Keras.
#
# Keras stores sublayers and variables in its own lists. A name in the checkpoint is the attribute's name if there is
# one, otherwise a position (``layers/0``) or the name that was given to the variable (``kernel``). Keras' own paths and
# generated names (``variable_3``) are not used, because they count the layers or variables of the whole process.

_GENERATED: Final = re.compile(r"(strategy_)?variable(_\d+)?(:0)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class KerasLeaf(Leaf):
    """Adapter by which a checkpoint reads and restores a Keras variable created outside of a strategy's scope."""

    variable: Any

    @property
    def owner(self) -> int:
        """The Python `id` of the Keras variable."""
        return id(self.variable)

    def outline(self) -> Saved:
        """Returns a `Saved` with the Keras variable's shape and dtype, without the value."""
        return Saved("array", tuple(self.variable.shape), str(np.dtype(self.variable.dtype)))

    def read(self) -> Saved:
        """Returns the Keras variable's value, in the form that checkpoints store.

        Raises:
            ContextError: The variable has no value: Keras' `fit` holds it as loop state during an epoch.
        """
        if self.variable._value is None:
            raise ContextError(
                "Checkpoint.save",
                found=f"{self.variable.path} has no value: Model.fit holds it as loop state until the end of the epoch",
                rule="all state must have its value when it is saved: between two steps, outside of fit's loop",
                remedy="call model.jax_state_sync() first (in a callback, accessing self.model does that)",
            )
        return dataclasses.replace(self.outline(), value=on_host(self.variable.numpy()))

    def put(self, saved: Saved) -> Undo:
        """Assigns a saved value to the Keras variable, and returns a function that undoes this."""
        variable, before = self.variable, on_host(self.variable.numpy())

        def assign(value: HostArray) -> None:
            with keeping_width(saved.dtype):
                variable.assign(value)

        assign(saved.one())
        return lambda: assign(before)


def keras_leaf(value: object) -> Leaf | None:
    """Returns the checkpoint adapter for a Keras variable; None for anything else."""
    if not is_keras(value, "Variable") or has_no_value_yet(value):
        return None
    ours = variable_behind(value)
    return KerasLeaf(value) if ours is None else VariableLeaf(ours)


def has_no_value_yet(value: object) -> bool:
    """Returns whether `value` is a Keras variable whose initialization Keras has deferred."""
    if not is_keras(value, "Variable") or variable_behind(value) is not None:
        return False
    return vars(value).get("_value") is None and getattr(value, "_initializer", None) is not None


def variable_behind(value: object) -> Variable | None:
    """Returns the `mirrored.Variable` that stores the value of a Keras variable, or None."""
    ours = getattr(value, "mirrored", None) if is_keras(value, "Variable") else None
    return ours if isinstance(ours, Variable) else None


def keras_parts(value: Any, place: Place) -> list[Part] | None:
    """Returns the state of a Keras layer, model, metric or seed generator that a checkpoint saves, or None."""
    if has_no_value_yet(value):
        return []
    if is_keras(value, "Layer"):
        return list(_layer_parts(value, place))
    if is_keras(value, "metrics.Metric"):
        return _by_name(value._variables, place) + _numbered("metrics", getattr(value, "_metrics", ()), place)
    if is_keras(value, "random.SeedGenerator"):
        return [Part("state", value.state, Attribute(place, "state"))]
    return None


def root_parts(value: object, place: Place) -> Iterable[Part]:
    """Returns the attributes or items of a root object that a checkpoint saves, each with its name and its `Place`.

    Layers in a list that is an attribute of a Keras model are named by that attribute only.
    """
    of_keras = keras_parts(value, place)
    if of_keras is None:
        return parts_of(value, place)
    named = {id(one) for part in of_keras if is_container(part.value) for one in _items(part.value)}
    return [part for part in of_keras if not (part.name.startswith("layers/") and id(part.value) in named)]


def _items(container: Any) -> Iterator[object]:
    for one in container.values() if isinstance(container, Mapping) else container:
        yield one
        if is_container(one):
            yield from _items(one)


def _layer_parts(layer: Layer, place: Place) -> Iterator[Part]:
    attributes = vars(layer).items()
    public = [
        (name, value)
        for name, value in attributes
        if not name.startswith("_") and (_is_stateful(value) or isinstance(value, (list, tuple, dict)))
    ]
    for name, value in public:
        yield Part(name, value, Attribute(place, name))
    yield from _numbered("layers", getattr(layer, "layers", None) or layer._layers, place)
    variables = [*layer._trainable_variables, *layer._non_trainable_variables]
    yield from _by_name([one for one in variables if not _GENERATED.fullmatch(one.name)], place)
    unnamed = [one for one in variables if _GENERATED.fullmatch(one.name)]
    private = {id(stored_variable(value)): name for name, value in attributes if name.startswith("_")}
    in_attributes = {id(stored_variable(one)) for _, value in public for one in (value, *_items_if_any(value))}
    for at, one in enumerate(unnamed):
        if id(stored_variable(one)) not in in_attributes:
            yield Part(private.get(id(stored_variable(one)), f"variables/{at}"), one, place)
    yield from _numbered("seed_generators", layer._seed_generators, place)
    yield from _numbered("metrics", layer._metrics, place)
    for name, value in attributes:
        if not name.startswith("_") and _is_foreign(value):
            yield Part(name, value, Attribute(place, name), since=1, only_variables=True)


def stored_variable(value: object) -> object:
    """Returns the `mirrored.Variable` that stores a Keras variable's value; returns any other `value` unchanged."""
    ours = variable_behind(value)
    return value if ours is None else ours


def is_generated(name: str) -> bool:
    """Returns whether a variable's name is an automatically generated default, such as ``variable_3``.

    A leading colon in the name is ignored.
    """
    return _GENERATED.fullmatch(name.removeprefix(":")) is not None


def holder_of(leaf: Leaf) -> object:
    """Returns the variable of a checkpoint adapter, or what holds its array; None for other adapters."""
    if isinstance(leaf, (VariableLeaf, KerasLeaf)):
        return leaf.variable
    return leaf.place.holder() if isinstance(leaf, ArrayLeaf) else None


def _items_if_any(value: object) -> Iterator[object]:
    return _items(value) if is_container(value) else iter(())


def _is_foreign(value: object) -> bool:
    """Returns whether a Keras layer's attribute is a non-Keras object whose attributes a checkpoint saves."""
    is_other = is_open(value) and package_of(value) != "keras"
    return is_other and not (_is_stateful(value) or is_container(value) or isinstance(value, functools.partial))


def _is_stateful(value: object) -> bool:
    kinds = ("Variable", "Layer", "metrics.Metric", "random.SeedGenerator", "optimizers.Optimizer")
    return isinstance(value, Variable) or any(is_keras(value, kind) for kind in kinds)


def _numbered(name: str, values: Sequence[Any], place: Place) -> list[Part]:
    # The place of the owner is sufficient: Keras objects are changed in place, never replaced.
    return [Part(f"{name}/{number}", value, place) for number, value in enumerate(values)]


def _by_name(variables: Sequence[Any], place: Place) -> list[Part]:
    names = [variable.name for variable in variables]
    unique = [name if names.count(name) == 1 else f"{name}_{at}" for at, name in enumerate(names)]
    return [Part(name, variable, place) for name, variable in zip(unique, variables, strict=True)]


def is_keras(value: object, name: str) -> bool:
    """Returns whether `value` is an instance of the Keras class `name`; False if Keras was never imported."""
    found: Any = sys.modules.get("keras")
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(value, found)
