"""Optimizer state other than variables and slots: a plain learning rate, a schedule, and subclass attributes.

A learning rate is a Python number until the optimizer is built. It is saved if it was assigned, and restored at once,
so that one that the program assigns afterwards holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import jax.numpy as jnp
import numpy as np
import optax

from mirrored.checkpoint.leaves import Leaf, Undo
from mirrored.checkpoint.objects import Part, attributes_of
from mirrored.checkpoint.open_classes import is_open
from mirrored.checkpoint.places import Attribute, Place
from mirrored.checkpoint.saved import Saved
from mirrored.optimizers import Optimizer
from mirrored.optimizers.rules import LearningRate

_OWN: Final = frozenset(vars(Optimizer(optax.identity())))


@dataclasses.dataclass(frozen=True)
class RateLeaf(Leaf):
    """Adapter by which a checkpoint reads and restores the learning rate of an optimizer that is not built."""

    rate: LearningRate

    @property
    def owner(self) -> int:
        """The Python `id` of the learning rate."""
        return id(self.rate)

    def outline(self) -> Saved:
        """Returns a `Saved` with the shape and dtype of the variable that will hold the learning rate."""
        return Saved("array", (), str(np.dtype(jnp.result_type(float))))

    def accepts(self, saved: Saved) -> bool:
        """Returns whether a saved value is a scalar array, but not a PRNG key.

        Any dtype is accepted, because the learning rate's variable gets its dtype only when it is created.
        """
        return saved.is_array and not saved.is_key and saved.shape == ()

    def read(self) -> Saved:
        """Returns the learning rate as an array, in the form that checkpoints store."""
        outline = self.outline()
        return dataclasses.replace(outline, value=np.asarray(self.rate.number, outline.dtype))

    def put(self, saved: Saved) -> Undo:
        """Sets the learning rate to a saved value, and returns a function that undoes the change."""
        rate, before = self.rate, (self.rate.number, self.rate.is_assigned)
        rate.number, rate.is_assigned = float(saved.one()), True

        def undo() -> None:
            rate.number, rate.is_assigned = before

        return undo


def unbuilt_rate(optimizer: object) -> LearningRate | None:
    """Returns the learning rate of an optimizer if it is a number that has no variable yet, otherwise None."""
    rate = optimizer.given_rate() if isinstance(optimizer, Optimizer) else None
    return rate if rate is not None and rate.is_unbuilt else None


def optimizer_parts(optimizer: object, place: Place) -> Iterator[Part]:
    """Yields an `Optimizer`'s state outside of variables: a schedule object, and attributes of a subclass."""
    if not isinstance(optimizer, Optimizer):
        return
    rate = optimizer.given_rate()
    if rate is not None and is_open(rate.schedule):
        yield Part("learning_rate", rate.schedule, place, since=1, only_variables=True)
    for name, value in attributes_of(optimizer):
        if name not in _OWN:
            yield Part(name, value, Attribute(place, name), since=1, only_variables=True)
