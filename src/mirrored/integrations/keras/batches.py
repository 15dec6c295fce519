"""Puts the batches of Keras' training loops on one device, or splits them over the devices of all workers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import JAXSparse
from jax.sharding import NamedSharding, PartitionSpec

from mirrored._jax.arrays import check_fit, owned
from mirrored._jax.traces import Tracer
from mirrored._typing import Array, HostArray
from mirrored.collectives.host_allgather import check_equal
from mirrored.errors import ContextError
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.integrations.keras.newest import GROUPS, variables_of
from mirrored.integrations.keras.private import purge_variables
from mirrored.strategies.reducing import gather_across

if TYPE_CHECKING:
    from keras import Model
    from keras import Variable as KerasVariable
    from keras.distribution import TensorLayout

    from mirrored.integrations.keras.loops import Parts, Source
    from mirrored.strategies import Strategy
    from mirrored.topology.device_assignment import DeviceAssignment

# Keras loops with `deterministic=True`: one program on one device computes every global batch.
#
# Keras computes a step over the global batch. If the batch is split over devices, the compiler sums over them in an
# order that depends on their number, so the results are not bit-identical. Therefore the state of `fit` moves to the
# first device, where the program is the same for every strategy. It moves back to all devices when Keras assigns it to
# the model.


def device_for(strategy: Strategy | None, called: str) -> Any:
    """Returns the device on which Keras computes whole batches if `strategy` is deterministic; None otherwise.

    Raises:
        ContextError: The strategy is deterministic and spans several processes.
    """
    device_assignment = None if strategy is None else strategy.device_assignment
    if device_assignment is None or not getattr(strategy, "deterministic", False):
        return None
    if device_assignment.spans_processes:
        raise ContextError(
            called,
            found="the model belongs to a deterministic strategy over several workers",
            rule="with deterministic=True, Keras can train only in one process: a batch is computed on one device",
            remedy="write a custom loop with strategy.run, or create the strategy without deterministic=True",
        )
    return device_assignment.devices[0]


def on_host(batch: Array | HostArray | JAXSparse) -> HostArray:
    """Returns a batch of `fit` as a dense NumPy array whose memory no other code overwrites.

    Keras makes a JAX sparse array of each batch of a SciPy sparse matrix.

    Raises:
        ArgumentError: Integers of 64 bits do not fit into 32.
    """
    host: HostArray = owned(as_dense(batch))
    check_fit(host)
    return host


def as_dense(batch: Array | HostArray | JAXSparse) -> HostArray:
    """Converts a dense or sparse array to a dense NumPy array, because sparse arrays cannot be split over devices."""
    return np.asarray(batch.todense() if isinstance(batch, JAXSparse) else batch)


def is_divisible(batch: HostArray, sharding: NamedSharding) -> bool:
    """Returns whether the number of rows of an array is divisible by the number of devices of a sharding."""
    return batch.ndim > 0 and batch.shape[0] % sharding.mesh.size == 0


def put_on(device: jax.Device) -> Callable[..., Any]:
    """Returns a replacement for Keras' `distribute_data_input` that puts each batch on one device."""

    def distribute_data_input(batch: Array | HostArray | None, layout: object, batch_dim_name: object) -> Any:
        del layout, batch_dim_name
        return None if batch is None else jax.device_put(on_host(batch), device)

    return distribute_data_input


def on_one_device(get_state: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._get_jax_state` to return a model's weights and optimizer state on one device (`device_for`)."""

    @functools.wraps(get_state)
    def getting(self: Model, **which: bool) -> Any:
        device = device_for(strategy_of(self), "fit")
        if device is None:
            return get_state(self, **which)
        groups = [variables_of(self, group) for group in GROUPS if which.get(group)]
        state = tuple([_on_device(variable, device) for variable in group] for group in groups)
        if which.get("purge_model_variables"):
            purge_variables(self, **{group: which.get(group, False) for group in GROUPS})
        return state

    return getting


def one_sharding(get_shardings: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._get_state_sharding_spec` to return single-device shardings of a model's state."""

    @functools.wraps(get_shardings)
    def getting(self: Model) -> Any:
        device = device_for(strategy_of(self), "fit")
        if device is None:
            return get_shardings(self)
        sharding = jax.sharding.SingleDeviceSharding(device)
        return tuple([sharding] * len(variables_of(self, group)) for group in GROUPS)

    return getting


def _on_device(variable: KerasVariable, device: jax.Device) -> Any:
    """Returns a copy of a variable's value on a device; donating the copy does not delete the variable's array."""
    return jnp.array(jax.device_put(variable.value, device), copy=True)


# Keras on several workers: assembles global batches from each worker's rows, and replicates outputs.


def across_workers(
    called: str, source: Source | None, device_assignment: DeviceAssignment
) -> Callable[[Any, Any, Any], Any]:
    """Returns a replacement for Keras' `distribute_data_input` that splits batches over the devices of all workers.

    Keras assumes that each worker passes its own part of the global batch. Here all workers read the same arrays or the
    same dataset, so each has the global batch and contributes its own rows. Only a distributed dataset yields parts. A
    batch that the devices do not divide is replicated.

    Args:
        called: The method of the model, for messages.
        source: The dataset from which the batches come; None for other data.
        device_assignment: The devices of the replicas, on several workers.

    Returns:
        A function of a batch, its Keras layout and the name of the batch dimension.
    """
    checked = False

    def distribute(
        batch: Array | HostArray | None, layout: TensorLayout | NamedSharding, batch_dim_name: object
    ) -> Any:
        nonlocal checked
        if batch is None:
            return None
        sharding = getattr(layout, "backend_layout", layout)
        host = on_host(batch)
        if source is not None and source.has_parts:
            assert source.parts is not None  # the batch comes from there
            return _of_parts(host, source.parts, sharding, device_assignment)
        if not checked:
            check_same(called, {"the first batch": host})
            checked = True
        if not is_divisible(host, sharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return distribute


def _of_parts(host: HostArray, parts: Parts, sharding: NamedSharding, device_assignment: DeviceAssignment) -> Any:
    """Builds the global JAX array of a batch, given only the rows for this worker's replicas.

    JAX infers the global size from those of one worker, so the parts must be equal. Rows of uneven parts are gathered.
    """
    if not parts.is_ragged:
        return jax.make_array_from_process_local_data(sharding, host)
    ends = list(itertools.accumulate(parts.sizes))
    components = [host[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    gathered = gather_across(components, 0, device_assignment)
    return jax.device_put(gathered, NamedSharding(sharding.mesh, PartitionSpec()))


def check_same(called: str, arrays: Mapping[str, HostArray]) -> None:
    """Raises an error on all workers if the first batch of a Keras loop is not equal on every worker.

    Args:
        called: The method of the model, for messages.
        arrays: The arrays of this worker's batch, by name.

    Raises:
        DisagreementError: They differ.
    """
    check_equal(
        f"Model.{called}",
        arrays,
        rule="all workers read the same batches, and each trains on its own rows of them",
        remedy="call keras.utils.set_random_seed with the same seed on all workers before data is shuffled, or pass "
        "shuffle=False; if each worker has its own data, pass a Dataset with AutoShardPolicy.OFF, or a "
        "distributed dataset",
    )


def everywhere(output: object) -> Any:
    """Replicates a JAX array that is sharded over several processes; returns anything else unchanged."""
    if not isinstance(output, jax.Array) or isinstance(output, Tracer):
        return output
    if output.is_fully_addressable or output.is_fully_replicated:
        return output
    return _replicated(NamedSharding(output.sharding.mesh, PartitionSpec()))(output)  # type: ignore[attr-defined]


@functools.cache
def _replicated(sharding: NamedSharding) -> Callable[..., Any]:
    return jax.jit(lambda array: array, out_shardings=sharding)
