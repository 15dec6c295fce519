"""Random seeds of `tf.keras`: `keras.utils.set_random_seed`, and random numbers of Keras without a seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from mirrored._jax.traces import current_trace, is_eval
from mirrored.runtime.ambient import ambient
from mirrored.tf._ops.generator import next_key, set_seed


def seeding(set_random_seed: Callable[[int], None]) -> Callable[[int], None]:
    """Wraps `keras.utils.set_random_seed` to also call `tf.random.set_seed`, as Keras does with TensorFlow."""

    @functools.wraps(set_random_seed)
    def setting(seed: int) -> None:
        set_random_seed(seed)
        set_seed(seed)

    return setting


class _Stream:
    """What Keras requires of a `SeedGenerator`: draws seeds from the global random state of `tf.random`."""

    def next(self, ordered: bool = True) -> jax.Array:
        """Returns a new seed, ``uint32[2]``."""
        del ordered
        return jax.random.key_data(next_key())


def drawing(global_seed_generator: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps Keras' `global_seed_generator` to draw from `tf.random` in replicas and in compiled functions.

    Keras' own is a variable that compiled functions on JAX cannot use, so Keras raises an error there.
    """

    @functools.wraps(global_seed_generator)
    def generator() -> Any:
        here = ambient()
        if here.replica is None and here.store is None and is_eval(current_trace()):
            return global_seed_generator()
        return _Stream()

    return generator
