"""Makes Keras draw random seeds from `tf.random`, and `keras.utils.set_random_seed` set the seed of `tf.random`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mirrored._jax.traces import current_trace, is_eval
from mirrored.runtime.ambient import ambient
from mirrored.runtime.element_draws import Pipelines, element_draws
from mirrored.tf._ops.generator import next_key, set_seed
from mirrored.tf._ops.random_streams import drawing_element, element_key


def seeding(set_random_seed: Callable[[int], None]) -> Callable[[int], None]:
    """Wraps `keras.utils.set_random_seed` to also call `tf.random.set_seed`, as Keras does with TensorFlow."""

    @functools.wraps(set_random_seed)
    def setting(seed: int) -> None:
        set_random_seed(seed)
        set_seed(seed)

    return setting


class _Stream:
    """A substitute for Keras' `SeedGenerator` that draws seeds from the global random state of `tf.random`."""

    def next(self, ordered: bool = True) -> jax.Array:
        """Returns a new seed, ``uint32[2]``."""
        del ordered
        return jax.random.key_data(next_key())


def drawing(global_seed_generator: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps Keras' `global_seed_generator` to draw from `tf.random` inside replicas, `tf.function` and `Dataset.map`.

    Keras' own is a variable that compiled functions on JAX cannot use, so Keras raises an error there.
    """

    @functools.wraps(global_seed_generator)
    def generator() -> Any:
        here = ambient()
        if element_draws() is not None:
            return _Stream()
        if here.replica is None and here.store is None and is_eval(current_trace()):
            return global_seed_generator()
        return _Stream()

    return generator


_pipelines: weakref.WeakKeyDictionary[Any, Pipelines] = weakref.WeakKeyDictionary()  # of each `SeedGenerator`


def drawing_for_elements(next_seed: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `keras.random.SeedGenerator.next` so that seeds drawn inside `Dataset.map` depend on the dataset element.

    Threads of a pipeline would otherwise read and assign the generator's state at the same time.
    """

    @functools.wraps(next_seed)
    def drawn(self: Any, ordered: bool = True) -> Any:
        element = drawing_element()
        if element is None:
            return next_seed(self, ordered)
        words = [int(np.asarray(self.state.value)[0])]
        number = _pipelines.setdefault(self, Pipelines()).number_of(element.pipeline, words)
        return jax.random.key_data(element_key(element, words, number))

    return drawn
