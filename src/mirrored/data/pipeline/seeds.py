"""The seeds of random steps, and the numbers of the passes over them, which all datasets that contain a step share."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from mirrored.data.calling import is_in_function

_drawn = itertools.count()
_lock: Final = threading.Lock()


class DrawnSeed(int):
    """A random seed that was drawn automatically, because the user gave none.

    Attributes:
        serial: Its position among the seeds that this process has drawn.
    """

    def __init__(self, _: int) -> None:
        self.serial = next(_drawn)


class _Global:
    """The global seed, and how many seeds have been derived from it since it was set."""

    seed: int | None = None
    count = 0


def set_global_seed(seed: int) -> None:
    """Makes the seeds that are drawn from now on depend only on `seed` and their number, as `tf.random.set_seed` does.

    Workers that create the same datasets draw equal seeds.
    """
    with _lock:
        _Global.seed, _Global.count = seed % 2**64, 0


def new_seed() -> DrawnSeed:
    """Draws a random seed for an operation, such as a shuffle, for which the user gave none.

    Saved positions contain the seed, so that restored iterations have the same order. In functions of datasets, which
    other threads may call ahead, all draws from a global seed are equal; `inner_run` tells them apart.
    """
    with _lock:
        if _Global.seed is None:
            return DrawnSeed(secrets.randbits(31))
        if is_in_function():
            return DrawnSeed(derived(_Global.seed))
        _Global.count += 1
        return DrawnSeed(derived(_Global.seed, _Global.count))


def derived(*key: int) -> int:
    """Returns a seed that depends only on `key`."""
    return int(np.random.default_rng(key).integers(2**31))


def seed_of(given: int | None) -> int:
    """Returns the seed that a user passed to an operation as an unsigned number, as NumPy requires; draws one for None.

    TensorFlow takes all integers of 64 bits.
    """
    if given is None:
        return new_seed()
    return int(given) % 2**64 if given < 0 else int(given)


class Passes:
    """What a random step keeps between passes; all datasets that contain the step share it, as in TensorFlow.

    Attributes:
        next: The number of the next pass, from 0. The step derives its order from it.
        seed: The seed of a restored position or of worker 0, which replaces the one of the step; None if there is none.
    """

    def __init__(self) -> None:
        self.next = 0
        self.seed: int | None = None


class Epochs:
    """Counts the passes over a dataset, and holds the seeds of its random steps for them, in the steps themselves.

    A pass gets a number that none of the steps has had, so that datasets made of one shuffled dataset, such as
    ``shuffled.take(n)`` in each epoch, have another order in every pass.

    Args:
        steps: The random steps of the dataset.
    """

    def __init__(self, steps: Iterable[Any]) -> None:
        self._steps = list(steps)

    @property
    def next(self) -> int:
        """The number of the next pass."""
        return max((step.passes.next for step in self._steps), default=0)

    def begin(self) -> int:
        """Counts a new pass over the dataset, and returns its number."""
        with _lock:
            number = self.next
            self.continue_with(number + 1, {})
        return number

    @property
    def seeds(self) -> dict[int, int]:
        """The seeds of the steps, by their `id`."""
        return {id(step): step.seed if step.passes.seed is None else step.passes.seed for step in self._steps}

    def continue_with(self, number: int, seeds: Mapping[int, int]) -> None:
        """Sets the number of the next pass over each step, and the seeds of steps by their `id`."""
        for step in self._steps:
            step.passes.next = number
            step.passes.seed = seeds.get(id(step), step.passes.seed)

    def get_state(self) -> list[tuple[int, int | None]]:
        """Returns the numbers and the seeds, to undo a change with `set_state`."""
        return [(step.passes.next, step.passes.seed) for step in self._steps]

    def set_state(self, state: Iterable[tuple[int, int | None]]) -> None:
        """Restores numbers and seeds that `get_state` returned."""
        for step, (number, seed) in zip(self._steps, state, strict=True):
            step.passes.next, step.passes.seed = number, seed
