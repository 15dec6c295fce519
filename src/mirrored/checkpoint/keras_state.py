"""The state of Keras objects in checkpoints, found without importing Keras.

Keras stores sublayers and variables in its own lists. A name in the checkpoint is the attribute's name if there is one,
otherwise a position (``layers/0``) or the variable's name (``kernel``). Keras' own paths are not used, because they
count the layers of the whole process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from mirrored.checkpoint.leaves import Leaf, Saved, Undo, VariableLeaf, on_host
from mirrored.checkpoint.objects import Part
from mirrored.checkpoint.places import Attribute, Place
from mirrored.errors import ContextError
from mirrored.variables import Variable

_SCALARS: Final = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


@dataclasses.dataclass(frozen=True)
class KerasLeaf(Leaf):
    """A Keras variable created outside of strategies."""

    variable: Any

    @property
    def owner(self) -> int:
        """The identity of the variable."""
        return id(self.variable)

    def outline(self) -> Saved:
        """Returns the shape and dtype."""
        return Saved("array", tuple(self.variable.shape), str(np.dtype(self.variable.dtype)))

    def read(self) -> Saved:
        """Returns the value.

        Raises:
            ContextError: The variable has no value: Keras' `fit` holds it as loop state during an epoch.
        """
        if self.variable._value is None:
            raise ContextError(
                "Checkpoint.save",
                found=f"{self.variable.path} has no value: Model.fit holds it as loop state until the end of the epoch",
                rule="a checkpoint contains the state between two steps",
                remedy="call model.jax_state_sync() first (in a callback, accessing self.model does that)",
            )
        return dataclasses.replace(self.outline(), value=on_host(self.variable.numpy()))

    def put(self, saved: Saved) -> Undo:
        """Assigns the saved value."""
        variable, before = self.variable, on_host(self.variable.numpy())
        variable.assign(saved.one())
        return lambda: variable.assign(before)


def keras_leaf(value: Any) -> Leaf | None:
    """Returns the leaf for a Keras variable; None for anything else."""
    if not _is(value, "Variable") or has_no_value_yet(value):
        return None
    ours = variable_behind(value)
    return KerasLeaf(value) if ours is None else VariableLeaf(ours)


def has_no_value_yet(value: Any) -> bool:
    """Returns whether `value` is a Keras variable that is initialized only at the end of the scope that created it."""
    if not _is(value, "Variable") or variable_behind(value) is not None:
        return False
    return vars(value).get("_value") is None and getattr(value, "_initializer", None) is not None


def variable_behind(value: Any) -> Variable | None:
    """Returns our variable behind a Keras variable that was created in a strategy's scope; None otherwise."""
    ours = getattr(value, "mirrored", None) if _is(value, "Variable") else None
    return ours if isinstance(ours, Variable) else None


def keras_parts(value: Any, place: Place) -> list[Part] | None:
    """Returns the parts of a Keras layer, model, metric or seed generator; None for anything else."""
    if has_no_value_yet(value):
        return []
    if _is(value, "Layer"):
        return list(_layer_parts(value, place))
    if _is(value, "metrics.Metric"):
        return _by_name(value._variables, value, place) + _numbered("metrics", getattr(value, "_metrics", ()), place)
    if _is(value, "random.SeedGenerator"):
        return [Part("state", value.state, Attribute(place, "state"))]
    return None


def keras_slots(value: Any) -> KerasSlots | None:
    """Returns the slots of a Keras optimizer; None for anything else."""
    return KerasSlots(value) if _is(value, "optimizers.Optimizer") else None


@dataclasses.dataclass(frozen=True)
class KerasGroup:
    """The variables that a Keras optimizer was built for, with its slots by position."""

    variables: tuple[Any, ...]
    shared: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class KerasMade:
    """The state that a Keras optimizer has created so far."""

    scalars: Mapping[str, Any]
    groups: tuple[KerasGroup, ...]


@dataclasses.dataclass(frozen=True)
class KerasSlots:
    """Adapts a Keras optimizer to `HasSlots`."""

    optimizer: Any

    def made(self) -> KerasMade:
        """Returns the step and learning rate, and the slots after the optimizer is built."""
        variables = list(self.optimizer.variables)
        scalars = {one.name: one for one in variables if one.name in _SCALARS}
        rest = [one for one in variables if one.name not in _SCALARS]
        if not self.optimizer.built:
            return KerasMade(scalars, ())
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        slots = {str(number): one for number, one in enumerate(rest)}
        return KerasMade(scalars, (KerasGroup(tuple(inner._trainable_variables), slots),))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        """Returns no slots: Keras' slots are named by position, in `KerasGroup.shared`."""
        del variable
        return {}

    def build(self, var_list: Sequence[Any]) -> None:
        """Builds the optimizer in the scope of the variables' strategy."""
        owners = [ours.strategy for one in var_list if (ours := variable_behind(one)) is not None]
        if var_list and not self.optimizer.built:
            with owners[0].scope() if owners and owners[0] is not None else contextlib.nullcontext():
                self.optimizer.build(list(var_list))


def _layer_parts(layer: Any, place: Place) -> Iterator[Part]:
    for name, value in vars(layer).items():
        if not name.startswith("_") and (_is_stateful(value) or isinstance(value, (list, tuple, dict))):
            yield Part(name, value, Attribute(place, name))
    yield from _numbered("layers", getattr(layer, "layers", None) or layer._layers, place)
    yield from _by_name([*layer._trainable_variables, *layer._non_trainable_variables], layer, place)
    yield from _numbered("seed_generators", layer._seed_generators, place)
    yield from _numbered("metrics", layer._metrics, place)


def _is_stateful(value: Any) -> bool:
    kinds = ("Variable", "Layer", "metrics.Metric", "random.SeedGenerator", "optimizers.Optimizer")
    return any(_is(value, kind) for kind in kinds)


def _numbered(name: str, values: Sequence[Any], place: Place) -> list[Part]:
    # The place of the owner is sufficient: Keras objects are changed in place, never replaced.
    return [Part(f"{name}/{number}", value, place) for number, value in enumerate(values)]


def _by_name(variables: Sequence[Any], owner: Any, place: Place) -> list[Part]:
    names = [variable.name for variable in variables]
    unique = [name if names.count(name) == 1 else f"{name}_{at}" for at, name in enumerate(names)]
    del owner
    return [Part(name, variable, place) for name, variable in zip(unique, variables, strict=True)]


def _is(value: Any, name: str) -> bool:
    """Returns whether `value` is an instance of a Keras class. It cannot be one if Keras has not been imported."""
    found: Any = sys.modules.get("keras")
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(value, found)
