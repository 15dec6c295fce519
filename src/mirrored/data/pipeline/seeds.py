"""Random seeds and pass counters of dataset operations; datasets that contain the same operation share them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mirrored.data.calling import is_in_function
from mirrored.data.global_seed import GlobalSeed, seed_lock
from mirrored.runtime.element_draws import element_draws

_drawn = itertools.count()


class DrawnSeed(int):
    """A random seed that was drawn automatically, because the user gave none.

    Attributes:
        serial: Its position among the seeds that this process has drawn.
    """

    def __init__(self, _: int) -> None:
        self.serial = next(_drawn)


def new_seed() -> DrawnSeed:
    """Draws a random seed for an operation, such as a shuffle, for which the user gave none.

    Saved positions contain the seed, so that restored iterations have the same order. In functions of datasets, which
    other threads may call ahead, all draws from a global seed are equal; `inner_run` tells them apart.
    """
    with seed_lock:
        if GlobalSeed.seed is None:
            return DrawnSeed(secrets.randbits(31))
        if is_in_function():
            return DrawnSeed(derived(GlobalSeed.seed))
        GlobalSeed.count += 1
        return DrawnSeed(derived(GlobalSeed.seed, GlobalSeed.count))


def derived(*key: int) -> int:
    """Returns a seed that depends only on `key`."""
    return int(np.random.default_rng(key).integers(2**31))


def seed_of(given: int | None) -> int:
    """Converts a user's seed to a nonnegative integer, as NumPy requires; draws a new seed for None.

    TensorFlow takes all integers of 64 bits.
    """
    if given is None:
        return new_seed()
    return int(given) % 2**64 if given < 0 else int(given)


def is_older(seed: DrawnSeed, other: int) -> bool:
    """Returns whether `seed` was drawn before `other`; False if `other` was not drawn automatically."""
    return isinstance(other, DrawnSeed) and seed.serial < other.serial


class FunctionPasses:
    """The pass counter and random stream of an operation with a user function, shared by all datasets that contain it.

    Attributes:
        next: The number of the next pass, from 0. The function derives its random numbers from it.
        number: From which the functions of a pipeline that begins with the step derive their random numbers, too.
    """

    def __init__(self) -> None:
        self.next = self.number = 0
        self._resets = -1

    def renew(self) -> None:
        """Starts a new random stream if the global seed was set since the last pass; callers must hold `seed_lock`."""
        if self._resets == GlobalSeed.resets:
            return
        if GlobalSeed.seed is None:
            number = secrets.randbits(62) | 1
        else:
            GlobalSeed.functions += 1
            number = int(np.random.default_rng([GlobalSeed.seed, GlobalSeed.functions, 1]).integers(1, 2**62))
        self.number, self.next, self._resets = number, 0, GlobalSeed.resets

    def get_state(self) -> tuple[int, int, int]:
        """Returns the random-stream number and the iteration counters of this operation.

        `set_state` restores them.
        """
        return self.number, self.next, self._resets

    def set_state(self, state: tuple[int, int, int]) -> None:
        """Restores the stream and pass numbers that `get_state` returned."""
        self.number, self.next, self._resets = state


class FunctionEpochs:
    """Counts the passes over a dataset; the dataset's user functions derive their random numbers from the count.

    Args:
        steps: The passes of its steps with functions, counted from the source.
    """

    def __init__(self, steps: Iterable[FunctionPasses]) -> None:
        self._steps = list(steps)

    @property
    def next(self) -> int:
        """The number of the next pass."""
        return max((step.next for step in self._steps), default=0)

    def begin(self) -> tuple[int, int]:
        """Counts a new iteration over the dataset, and returns two seed numbers for the user functions.

        They are the number of the random stream and that of the iteration. In a function of another dataset, they are
        the stream of that dataset and a number that depends on the element, not on the threads that call the function.
        """
        if not self._steps:
            return 0, 0
        element = element_draws()
        if element is not None:
            return element.pipeline, element.next_pass()
        with seed_lock:
            for step in self._steps:
                step.renew()
            number, count = self._steps[0].number, self.next
            for step in self._steps:
                step.next = count + 1
        return number, count

    def continue_with(self, number: int, following: int) -> None:
        """Sets the pipeline's random-stream number and the number of the next pass."""
        with seed_lock:
            for step in self._steps:
                step.renew()
                step.next = following
            if self._steps:
                self._steps[0].number = number

    def get_state(self) -> list[tuple[int, int, int]]:
        """Returns the random-stream numbers and iteration counters of the dataset's user functions.

        `set_state` restores them.
        """
        return [step.get_state() for step in self._steps]

    def set_state(self, state: Iterable[tuple[int, int, int]]) -> None:
        """Restores the stream and pass numbers that `get_state` returned."""
        for step, numbers in zip(self._steps, state, strict=True):
            step.set_state(numbers)


class Passes:
    """The pass counter and seed of a random operation, shared by all datasets that contain it, as in TensorFlow.

    Attributes:
        next: The number of the next pass, from 0. The step derives its order from it.
        seed: The seed of a restored position or of worker 0. It replaces the step's own seed; None to use that.
    """

    def __init__(self) -> None:
        self.next = 0
        self.seed: int | None = None
        self._jobs = GlobalSeed.jobs

    def renew(self) -> None:
        """Counts from 0 again if this process has left a job since the last pass.

        Other workers of the next job can be new processes, which have read nothing.
        """
        if self._jobs != GlobalSeed.jobs:
            self.next, self._jobs = 0, GlobalSeed.jobs


class Epochs:
    """Counts the passes over a dataset, and returns the seeds of the dataset's random operations.

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
        """Counts a new pass over the dataset, and returns the pass's number."""
        with seed_lock:
            for step in self._steps:
                step.passes.renew()
            number = self.next
            self.continue_with(number + 1, {})
        return number

    @property
    def seeds(self) -> dict[int, int]:
        """The seeds of the dataset's random operations, keyed by `id(operation)`."""
        return {id(step): step.seed if step.passes.seed is None else step.passes.seed for step in self._steps}

    def continue_with(self, number: int, seeds: Mapping[int, int]) -> None:
        """Sets the iteration number and the seeds that the dataset's random operations use next.

        The dict `seeds` is keyed by `id(operation)`. Operations that it lacks keep their seed.
        """
        for step in self._steps:
            step.passes.next = number
            step.passes.seed = seeds.get(id(step), step.passes.seed)

    def get_state(self) -> list[tuple[int, int | None]]:
        """Returns the pass numbers and seeds, so that `set_state` can undo later changes."""
        return [(step.passes.next, step.passes.seed) for step in self._steps]

    def set_state(self, state: Iterable[tuple[int, int | None]]) -> None:
        """Restores the pass numbers and seeds that `get_state` returned."""
        for step, (number, seed) in zip(self._steps, state, strict=True):
            step.passes.next, step.passes.seed = number, seed
