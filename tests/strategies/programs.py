"""What the tests of strategies share: a replica's id, and per-replica values to feed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import mirrored as mr


def rid() -> Any:
    """This replica's id."""
    return mr.get_replica_context().replica_id_in_sync_group


def fid() -> Any:
    """This replica's id as a float."""
    return jnp.asarray(rid(), jnp.float32)


def per_replica(strategy: Any, values: Any) -> Any:
    """A per-replica value with ``values[i]`` on replica i."""
    return strategy.distribute_values_from_function(lambda c: jnp.asarray(values[c.replica_id_in_sync_group]))


def parts(strategy: Any, value: Any) -> list[Any]:
    """The components of a value, as Python lists and numbers."""
    return [np.asarray(part).tolist() for part in strategy.local_results(value)]
