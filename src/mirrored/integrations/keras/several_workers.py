"""Keras on several workers: assembles global batches from each worker's rows, and replicates outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mirrored._jax.host_memory import owned
from mirrored._jax.traces import is_tracer
from mirrored.collectives.host_allgather import check_equal
from mirrored.errors import ArgumentError


def across_workers(called: str, has_parts: bool) -> Callable[[Any, Any, Any], Any]:
    """Returns a function that places a Keras batch on the devices of all workers.

    Keras assumes that each worker passes its own part of the global batch. Here all workers read the same arrays or the
    same dataset, so each has the global batch and contributes its own rows. Only a distributed dataset yields parts.

    Args:
        called: The method of the model, for messages.
        has_parts: Whether the batches come from a distributed dataset.

    Returns:
        A function of a batch, its Keras layout and the name of the batch dimension.
    """
    checked = False

    def distribute(batch: Any, layout: Any, batch_dim_name: Any) -> Any:
        nonlocal checked
        if batch is None:
            return None
        sharding = getattr(layout, "backend_layout", layout)
        host = owned(np.asarray(batch))
        if has_parts:
            return _of_parts(called, host, sharding)
        if not checked:
            _check_same(called, host)
            checked = True
        if host.shape[0] % sharding.mesh.size:
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return distribute


def _of_parts(called: str, host: np.ndarray[Any, Any], sharding: Any) -> Any:
    local = len(sharding.addressable_devices)
    if host.shape[0] % local:
        raise ArgumentError(
            f"Model.{called}",
            found=f"a batch of a distributed dataset with {host.shape[0]} rows on this worker, and {local} devices",
            rule="with several workers, the rows of a worker's batch are divisible by its number of devices",
            remedy="pass the undistributed dataset, which Keras can split unevenly, or batch(..., drop_remainder=True)",
        )
    return jax.make_array_from_process_local_data(sharding, host)


def _check_same(called: str, host: np.ndarray[Any, Any]) -> None:
    check_equal(
        f"Model.{called}",
        {"the first batch": host},
        rule="all workers read the same batches, and each trains on its own rows of them",
        remedy="call keras.utils.set_random_seed with the same seed on all workers before data is shuffled, or pass "
        "shuffle=False; if each worker has its own data, pass a distributed dataset",
    )


def everywhere(output: Any) -> Any:
    """Replicates an array that is sharded over several processes; returns anything else unchanged."""
    if not isinstance(output, jax.Array) or is_tracer(output):
        return output
    if output.is_fully_addressable or output.is_fully_replicated:
        return output
    return _replicated(NamedSharding(output.sharding.mesh, PartitionSpec()))(output)  # type: ignore[attr-defined]


@functools.cache
def _replicated(sharding: NamedSharding) -> Callable[..., Any]:
    return jax.jit(lambda array: array, out_shardings=sharding)
