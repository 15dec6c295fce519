"""Stores the global seed of datasets in a module that can be imported without the dataset pipeline."""

from __future__ import annotations

import threading
from typing import Final

from mirrored._jax import distributed

seed_lock: Final = threading.Lock()
"""Guards `GlobalSeed` and the numbers that pipelines derive from it."""


class GlobalSeed:
    """The global seed, and counters of the random seeds and random streams that were derived from the global seed.

    Attributes:
        seed: The global seed.
        count: The number of seeds drawn.
        functions: The number of functions that were numbered.
        resets: How often the global seed was set.
    """

    seed: int | None = None
    count = functions = resets = 0


def set_global_seed(seed: int) -> None:
    """Sets the global seed: the n-th seed drawn from now on depends only on `seed` and n, as with `tf.random.set_seed`.

    Workers that create the same datasets draw equal seeds. The functions of a dataset that exists already draw as those
    of a new one in its next pass.
    """
    with seed_lock:
        GlobalSeed.seed, GlobalSeed.count, GlobalSeed.functions = seed % 2**64, 0, 0
        GlobalSeed.resets += 1


def counts() -> tuple[int | None, int, int]:
    """Returns the global seed, the number of seeds drawn from it, and the number of numbered functions."""
    with seed_lock:
        return GlobalSeed.seed, GlobalSeed.count, GlobalSeed.functions


def restore_counts(saved: tuple[int | None, int, int]) -> None:
    """Restores a result of `counts`, so that the next seeds are those that were drawn after that call."""
    with seed_lock:
        GlobalSeed.seed, GlobalSeed.count, GlobalSeed.functions = saved


_counts_before: Final[list[tuple[int | None, int, int]]] = []


@distributed.before_first_job
def _note_counts() -> None:
    _counts_before[:] = [counts()]


@distributed.on_leave
def _restore_first_counts() -> None:
    """Makes an elastic job's training function draw the same seeds in each call, as in that of a new worker."""
    for before in _counts_before:
        restore_counts(before)
        if GlobalSeed.seed is not None:
            with seed_lock:
                GlobalSeed.resets += 1  # operations made before the job take their random streams again, too
