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
        functions: The number of random streams derived for operations with a user function.
        resets: How often the random streams of functions began anew: the global seed was set, or a job was left.
        jobs: How often this process has left a job.
    """

    seed: int | None = None
    count = functions = resets = jobs = 0


def set_global_seed(seed: int) -> None:
    """Sets the global seed: the n-th seed drawn from now on depends only on `seed` and n, as with `tf.random.set_seed`.

    Workers that create the same datasets draw equal seeds. In its next pass, the user functions of an existing dataset
    draw the same random numbers as those of a new dataset.
    """
    with seed_lock:
        GlobalSeed.seed, GlobalSeed.count, GlobalSeed.functions = seed % 2**64, 0, 0
        GlobalSeed.resets += 1


def counts() -> tuple[int | None, int, int]:
    """Returns the global seed, and the numbers of seeds and of random streams derived from the global seed."""
    with seed_lock:
        return GlobalSeed.seed, GlobalSeed.count, GlobalSeed.functions


def restore_counts(saved: tuple[int | None, int, int]) -> None:
    """Resets the global seed and its counters to an earlier result of `counts`.

    The seeds that were drawn after that call of `counts` are then drawn again.
    """
    with seed_lock:
        GlobalSeed.seed, GlobalSeed.count, GlobalSeed.functions = saved


_counts_before: Final[list[tuple[int | None, int, int]]] = []


@distributed.before_first_job
def _note_counts() -> None:
    _counts_before[:] = [counts()]


@distributed.on_leave
def _restore_first_counts() -> None:
    """Resets the global seed and its counters to their values before the elastic job.

    A repeated training function then draws the same seeds. Datasets made before the job count their passes from 0
    again, and take their random streams again, as those of a worker that joins.
    """
    with seed_lock:
        GlobalSeed.resets += 1
        GlobalSeed.jobs += 1
    for before in _counts_before:
        restore_counts(before)
