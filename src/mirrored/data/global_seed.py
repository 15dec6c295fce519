"""Stores the global seed of datasets, apart from the pipeline, which setting a seed need not import."""

from __future__ import annotations

import threading
from typing import Final

seed_lock: Final = threading.Lock()
"""Guards `GlobalSeed` and the numbers that pipelines derive from it."""


class GlobalSeed:
    """The global seed, and counters of the seeds and function streams that were derived from it.

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
