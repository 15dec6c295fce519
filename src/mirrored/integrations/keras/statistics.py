"""Reads statistics of Keras layers, such as those of BatchNormalization, with `deterministic=True`."""

from __future__ import annotations

import jax
import numpy as np

from mirrored._jax.traces import eager
from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable, VariableAggregation
from mirrored.variables.access import check_readable


def exact_statistic(made: Variable) -> jax.Array | None:
    """Returns the value of a statistic, without averaging, if it is bit-identical on all replicas; otherwise None.

    The mean of equal components can differ from them in the last bit, depending on the number of replicas.

    Returns:
        The value, without a reduction; None for other variables, and if the components differ.
    """
    is_mean = made.per_replica and made.aggregation is VariableAggregation.MEAN
    if not (is_mean and getattr(made.strategy, "deterministic", False)) or made.device_assignment.spans_processes:
        return None
    check_readable(made, None, ambient())
    components = [made.stored_component(replica) for replica in range(made.num_replicas)]
    if len({np.asarray(one).tobytes() for one in components}) > 1:
        return None
    with eager():
        value: jax.Array = jax.device_put(components[0], made.device_assignment.replicated)
    return value
