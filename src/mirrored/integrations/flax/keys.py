"""NNX random keys: one stored key, from which each replica derives its own key in `run`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable


class ReplicaKey:
    """A random key in a mirrored variable.

    In replica context, reading returns `jax.random.fold_in` of the key and the replica number. So replicas draw
    different random numbers, independent of the device assignment. The first replica, and code outside `run`, gets the
    key itself.

    Args:
        key: The key (an array of a ``key<...>`` dtype).
        name: The variable's name.
    """

    def __init__(self, key: Any, name: str) -> None:
        self._implementation = jax.random.key_impl(key)
        self.variable = Variable(jax.random.key_data(key), trainable=False, name=name)

    def read_value(self) -> Any:
        """Returns the key for the current context."""
        key = self._wrapped(self.variable.read_value())
        replica = ambient().replica
        if replica is None or replica.num_replicas_in_sync == 1:
            return key
        number = replica.replica_id_in_sync_group
        if isinstance(number, int):
            return key if number == 0 else jax.random.fold_in(key, number)
        folded = jax.random.key_data(jax.random.fold_in(key, number))
        return self._wrapped(jnp.where(number == 0, jax.random.key_data(key), folded))

    def assign(self, key: Any) -> None:
        """Replaces the key outside `run`; has no effect in replica context.

        NNX's transforms write back the key that they read. In a replica that is usually a folded key.
        """
        replica = ambient().replica
        if replica is not None and replica.num_replicas_in_sync > 1:
            return
        self.variable.assign(jax.random.key_data(key), read_value=False)

    def _wrapped(self, data: Any) -> Any:
        return jax.random.wrap_key_data(data, impl=self._implementation)
