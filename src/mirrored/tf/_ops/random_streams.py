"""Derives random keys from a generator's state variable, or for each dataset element inside `Dataset.map`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import current_trace, is_eval
from mirrored._typing import Operand
from mirrored.errors import TransformError
from mirrored.runtime.ambient import ambient, entered
from mirrored.runtime.element_draws import DrewWhileTracing, ElementDraws, element_draws
from mirrored.variables.state_lock import assignment_lock
from mirrored.variables.variable import Variable


class DrewUnderTransform(TransformError):
    """Error raised by `advance` under a JAX transform such as `jax.vmap`, which cannot record the new state."""


def initial_state(seed: int) -> np.ndarray[Any, Any]:
    # A seed is any Python int; all but its lowest 64 bits are dropped on purpose.
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF, 0], np.uint32)


def key_of(words: jax.Array) -> jax.Array:
    """Creates a JAX random key from two 32-bit integers."""
    return jax.random.wrap_key_data(words.astype(jnp.uint32), impl="threefry2x32")  # type: ignore[no-any-return]


def advance(state: Variable, draws: int = 1, own: Operand = 0) -> jax.Array:
    """Advances a generator's state by `draws` draws, and returns the random key of the draw with index `own`.

    Raises:
        DrewUnderTransform: The caller is under a JAX transform.
    """
    here = ambient()
    if here.store is not None and here.store.captures and is_eval(current_trace()):
        with entered(here.fork(store=None)):  # eager code while a function is traced: an initial value
            return advance(state, draws, own)
    with assignment_lock():  # other threads must not draw the same number
        value = state.read_value()
        try:
            state.assign(value + jnp.asarray([0, 0, draws], jnp.uint32), read_value=False)
        except TransformError as error:
            raise DrewUnderTransform(error.called, found=error.found, rule=error.rule, remedy=error.remedy) from None
    return jax.random.fold_in(key_of(value[:2]), value[2] + jnp.asarray(own, jnp.uint32))


def of_replica(key: jax.Array) -> jax.Array:
    """Derives a different key for each replica; returns `key` itself for replica 0 and outside of `strategy.run`."""
    replica = ambient().replica
    if replica is None or replica.num_replicas_in_sync == 1:
        return key
    index = jnp.asarray(replica.replica_id_in_sync_group, jnp.uint32)
    return jnp.where(index == 0, key, jax.random.fold_in(key, index))


def drawing_element() -> ElementDraws | None:
    """Returns the random state of the current dataset element; None outside of functions such as that of `Dataset.map`.

    A bare JAX transform in such a function counts as outside: it could not draw another number for each element.

    Raises:
        DrewWhileTracing: The function calls a compiled function, which is being traced.
    """
    element = element_draws()
    if element is None or is_eval(current_trace()):
        return element
    store = ambient().store
    if store is not None and store.captures:
        raise DrewWhileTracing
    return None


def element_key(element: ElementDraws, words: Sequence[int], number: int) -> jax.Array:
    """Draws the next JAX random key for a dataset element; the sequence of keys depends on the seed `words`.

    Args:
        element: The random numbers of the element.
        words: The seed of the stream.
        number: The number of the pipeline among those that draw from the stream.
    """
    return key_of(jnp.asarray(element.next_words(*words, number)))
