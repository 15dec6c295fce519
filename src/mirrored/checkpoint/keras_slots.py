"""The slot variables of Keras optimizers (such as momenta) in checkpoints, found without importing Keras.

A slot is named by its position in the optimizer, which does not depend on the layers or variables of the whole process,
and by its kind (``3_velocity``), so that it is not restored as a slot of another kind. Keras' own name of a slot begins
with the path of its model variable; what follows is the kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mirrored.checkpoint.objects import is_keras, variable_behind
from mirrored.errors import CheckpointMismatchError

_SCALARS: Final = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


def keras_slots(value: object) -> KerasSlots | None:
    """Adapts a Keras optimizer so that a checkpoint can save its slot variables; returns None for anything else."""
    return KerasSlots(value) if is_keras(value, "optimizers.Optimizer") else None


@dataclasses.dataclass(frozen=True)
class KerasGroup:
    """The model variables that a Keras optimizer updates, and the optimizer's slot variables.

    Attributes:
        variables: The model variables.
        shared: The slot variables, keyed by label.
        former: The labels that slot variables have in checkpoints of earlier versions (positions), keyed by label.
    """

    variables: tuple[Any, ...]
    shared: Mapping[str, Any]
    former: Mapping[str, str]

    @property
    def in_slot_order(self) -> tuple[Any, ...]:
        """The model variables."""
        return self.variables


@dataclasses.dataclass(frozen=True)
class KerasMade:
    """The state that a Keras optimizer has created so far: scalars, and groups of variables with slot variables."""

    scalars: Mapping[str, Any]
    groups: tuple[KerasGroup, ...]


@dataclasses.dataclass(frozen=True)
class KerasSlots:
    """Adapter from a Keras optimizer to `HasSlots`, the interface by which checkpoints save slot variables."""

    optimizer: Any

    def made(self) -> KerasMade:
        """Returns the Keras optimizer's step, learning rate and, if the optimizer is built, slot variables."""
        variables = list(self.optimizer.variables)
        scalars = {one.name: one for one in variables if one.name in _SCALARS}
        rest = [one for one in variables if one.name not in _SCALARS]
        if not self.optimizer.built:
            return KerasMade(scalars, ())
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        labels = _labels(rest, inner._trainable_variables, is_keras(inner, "optimizers.SGD"))
        former = {label: str(number) for number, label in enumerate(labels) if label != str(number)}
        group = KerasGroup(tuple(inner._trainable_variables), dict(zip(labels, rest, strict=True)), former)
        return KerasMade(scalars, (group,))

    def slots(self, variable: object) -> Mapping[str, Any]:
        """Returns an empty dict: the slot variables of Keras optimizers are in `KerasGroup.shared`."""
        del variable
        return {}

    def build(self, var_list: Sequence[Any]) -> None:
        """Builds the Keras optimizer's slot variables, in the scope of the model variables' strategy."""
        owners = [ours.strategy for one in var_list if (ours := variable_behind(one)) is not None]
        if var_list and not self.optimizer.built:
            with owners[0].scope() if owners and owners[0] is not None else contextlib.nullcontext():
                self.optimizer.build(list(var_list))


def _labels(slots: Sequence[Any], variables: Sequence[Any], is_sgd: bool) -> list[str]:
    """Returns a label for each slot: the position, and the kind (such as ``momentum``) if the slot's name states it.

    The momentum of SGD has a kind of its own: it is the sum of past steps, ``-learning_rate * gradient``, and that of
    Lion and Adam a mean of gradients, of the other sign and another scale.
    """
    prefixes = {f"{getattr(one, 'path', one.name).replace('/', '_')}_" for one in variables}
    kinds = [_kind(slot.name, prefixes) for slot in slots]
    own = [["SGD", *kind] if is_sgd and kind == ["momentum"] else kind for kind in kinds]
    return ["_".join([str(number), *kind]) for number, kind in enumerate(own)]


def _kind(name: str, prefixes: set[str]) -> list[str]:
    # The longest path: that of a variable can begin with that of another one.
    ends = [at + 1 for at, letter in enumerate(name) if letter == "_" and name[: at + 1] in prefixes]
    return [name[ends[-1] :]] if ends else []


def check_slot_kinds(
    optimizer: str,
    prefixes: tuple[str, str],
    missing: Sequence[str],
    unexpected: Sequence[str],
    directory: Path,
    called: str,
) -> None:
    """Raises an error if slots of a Keras optimizer and a checkpoint differ in kind, such as momentum and velocity.

    Compares the slots that have the same number, that is, the same position among the optimizer's slots.

    Args:
        optimizer: The optimizer's name.
        prefixes: What the names of its slots begin with in the program, and in the checkpoint.
        missing: The names that only the program has.
        unexpected: The names that only the checkpoint has.
        directory: The checkpoint.
        called: What the user called, for messages.

    Raises:
        CheckpointMismatchError: There are such slots.
    """
    here, there = _by_position(prefixes[0], missing), _by_position(prefixes[1], unexpected)
    for position, kind in here.items():
        if position in there:
            raise CheckpointMismatchError(
                called,
                found=f"slot {position} of the optimizer {optimizer!r} is {kind or 'unnamed'!r}, and in {directory} it "
                f"is {there[position] or 'unnamed'!r}; nothing was restored",
                rule="the slots of a Keras optimizer can be restored only into an optimizer of the same class, with "
                "the same options for slots (momentum, amsgrad, use_ema, ...)",
                remedy="create the optimizer as it was when it was saved, or leave it out of the checkpoint to begin "
                "with new slots: Checkpoint(model=model).restore(path).expect_partial()",
            )


def _by_position(prefix: str, names: Sequence[str]) -> dict[str, str]:
    labels = [name.removeprefix(prefix).partition("_") for name in names if name.startswith(prefix)]
    return {position: kind for position, _, kind in labels}
