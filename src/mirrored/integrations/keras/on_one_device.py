"""Keras loops with `deterministic=True`: one program on one device computes every global batch.

Keras computes a step over the global batch. If the batch is split over devices, the compiler sums over them in an order
that depends on their number, so the results are not bit-identical. Therefore the state of `fit` moves to the first
device, where the program is the same for every strategy. It moves back to all devices when Keras assigns it to the
model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.host_memory import owned
from mirrored.errors import ContextError
from mirrored.integrations.keras.newest import GROUPS, variables_of
from mirrored.variables import Variable, VariableAggregation


def device_for(strategy: Any, called: str) -> Any:
    """Returns the device on which `fit` computes, or None if it splits batches over all devices.

    Raises:
        ContextError: The strategy is deterministic and spans several processes.
    """
    if not getattr(strategy, "deterministic", False):
        return None
    if strategy.device_assignment.spans_processes:
        raise ContextError(
            called,
            found="a model of a deterministic strategy over several workers",
            rule="with deterministic=True, Keras computes each global batch on one device, in one process",
            remedy="write a custom loop with strategy.run, or create the strategy without deterministic=True",
        )
    return strategy.device_assignment.devices[0]


def put_on(device: Any) -> Callable[..., Any]:
    """Returns a replacement for Keras' `distribute_data_input` that places a batch on one device."""

    def distribute_data_input(batch: Any, layout: Any, batch_dim_name: Any) -> Any:
        del layout, batch_dim_name
        return None if batch is None else jax.device_put(owned(np.asarray(batch)), device)

    return distribute_data_input


def on_one_device(get_state: Callable[..., Any], device_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wraps `Trainer._get_jax_state` to return the state on one device.

    Args:
        get_state: The wrapped method.
        device_of: Returns the device of a model, see `device_for`.
    """

    @functools.wraps(get_state)
    def getting(self: Any, **which: Any) -> Any:
        device = device_of(self)
        if device is None:
            return get_state(self, **which)
        groups = [variables_of(self, group) for group in GROUPS if which.get(group)]
        state = tuple([_on_device(variable, device) for variable in group] for group in groups)
        if which.get("purge_model_variables"):
            self._purge_model_variables(**{group: which.get(group, False) for group in GROUPS})
        return state

    return getting


def one_sharding(get_shardings: Callable[..., Any], device_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wraps `Trainer._get_state_sharding_spec` to match the state of `on_one_device`."""

    @functools.wraps(get_shardings)
    def getting(self: Any) -> Any:
        device = device_of(self)
        if device is None:
            return get_shardings(self)
        sharding = jax.sharding.SingleDeviceSharding(device)
        return tuple([sharding] * len(variables_of(self, group)) for group in GROUPS)

    return getting


def _on_device(variable: Any, device: Any) -> Any:
    """Returns a copy, which the step can donate. The variable keeps its value until the step's result is assigned."""
    made = getattr(variable, "mirrored", None)
    value = _same_component(made) if isinstance(made, Variable) else None
    return jnp.array(jax.device_put(variable.value if value is None else value, device), copy=True)


def _same_component(made: Variable) -> Any:
    """Returns the component of a statistic if it is bit-identical on all replicas, else None.

    The mean of equal components can differ from them in the last bit.
    """
    if not made.per_replica or made.aggregation is not VariableAggregation.MEAN or made.num_replicas == 1:
        return None
    components = [made.stored_component(replica) for replica in range(made.num_replicas)]
    first = np.asarray(components[0])
    same = all(np.asarray(one).tobytes() == first.tobytes() for one in components[1:])
    return components[0] if same else None
