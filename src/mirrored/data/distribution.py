"""Implements `Strategy.experimental_distribute_dataset` and `Strategy.distribute_datasets_from_function`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from mirrored._jax import distributed
from mirrored._typing import PyTree
from mirrored.data.distributed import DistributedDataset
from mirrored.data.input_options import InputContext, InputOptions, InputReplicationMode
from mirrored.data.placement import Placer
from mirrored.data.readers import ElementsInTurn, GlobalBatches
from mirrored.data.sources import Source, WorkerShare, as_source, elastic_job_error
from mirrored.data.specs import ArraySpec, map_specs
from mirrored.errors import ArgumentError
from mirrored.strategies import Strategy
from mirrored.topology.device_assignment import DeviceAssignment


@dataclasses.dataclass(frozen=True)
class PerReplicaSpec:
    """The shapes and dtypes of a per-replica value: one `ArraySpec` per replica.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> dataset = strategy.experimental_distribute_dataset(mr.data.Dataset.range(6).batch(4))
        >>> dataset.element_spec
        PerReplicaSpec(ArraySpec(int64[None]), ArraySpec(int64[None]))

    TensorFlow: the private class `PerReplicaSpec`, which is the element spec of a `DistributedDataset`.
    """

    components: tuple[ArraySpec, ...]

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self.components))})"


def distribute_dataset(
    strategy: Strategy, dataset: Iterable[Any], options: InputOptions | None = None
) -> DistributedDataset:
    """Distributes a dataset: splits each global batch over the replicas, and prefetches batches to the devices.

    Each element must be a global batch. An element that cannot be a batch raises an error: a scalar, arrays that differ
    in their first dimension, or a row of a `Dataset` without a batching step. A vector of features and a batch of
    numbers have the same type. If a list, generator or loader yields bare vectors of one length, each vector is
    therefore split as a batch, and a warning is logged if the vectors do not split evenly. Batch examples first
    (`Dataset.from_generator(f).batch(n)`, `numpy.stack`).

    Context: cross-replica.

    Args:
        strategy: The strategy whose replicas receive the batches.
        dataset: A `Dataset`, a Grain dataset or DataLoader, a PyTorch DataLoader, a Hugging Face dataset, a NumPy
            pytree (with ``InputOptions(batch_size=n)``), or any re-iterable of batches.
        options: See `InputOptions`.

    Raises:
        ArgumentError: `dataset` is not one of these types or can be read only once, or an option has no effect here.
        StructureError: While reading: the dataset is not batched.

    Example:
        >>> import numpy as np
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> for batch in mr.data.distribute_dataset(strategy, [np.arange(4.0), np.arange(4.0, 8.0)]):
        ...     [part.tolist() for part in strategy.experimental_local_results(batch)]
        [[0.0, 1.0], [2.0, 3.0]]
        [[4.0, 5.0], [6.0, 7.0]]

    TensorFlow: the method `experimental_distribute_dataset` of the strategy, which takes a `tf.data.Dataset`.
    """
    called = "Strategy.experimental_distribute_dataset"
    options = _checked(options, called, from_function=False)
    if isinstance(dataset, DistributedDataset):
        raise ArgumentError(
            called,
            found="the dataset is already distributed",
            rule="a dataset can be distributed only once",
            remedy="iterate over it directly",
        )
    return _distributed(strategy, as_source(dataset, options.batch_size, called), options, called)


def distribute_own_batches(strategy: Strategy, dataset: Iterable[Any], called: str) -> DistributedDataset | None:
    """Distributes a dataset if each worker reads its own batches; returns None if all workers read the same batches.

    Workers read their own batches with `AutoShardPolicy.FILE` and `OFF`.

    Context: cross-replica; all workers call it.

    Args:
        strategy: The strategy whose replicas receive the batches.
        dataset: A dataset of global batches, as for `distribute_dataset`.
        called: What the user called, for messages.

    Raises:
        ArgumentError: The data cannot be divided among the workers.
        StructureError: The dataset is not batched.
    """
    distributed = _distributed(strategy, as_source(dataset, None, called), InputOptions(), called)
    return distributed if distributed._placer.own_batches else None


def _distributed(strategy: Strategy, source: Source, options: InputOptions, called: str) -> DistributedDataset:
    share = _worker_share(strategy.device_assignment)
    own = None if share is None else source.of_worker(share, called)
    placer = Placer(strategy.device_assignment, options.experimental_fetch_to_device, own is not None)
    if share is None or own is None:
        read, replicas = source, placer.num_replicas
    else:
        read, replicas = own, share.local_replicas
    return DistributedDataset(
        lambda: GlobalBatches(read, options, replicas),
        placer,
        options,
        lambda: _spec_of_per_replica_batches(_with_mask(read.spec, options), placer.num_replicas),
        lambda: read.full_batches if options.last_batch == "drop" else read.cardinality,
        read.end_error,
    )


def distribute_from_function(
    strategy: Strategy, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
) -> DistributedDataset:
    """Distributes the datasets that a user function returns; each element is one replica's batch.

    Every element is used. If the last elements do not reach all replicas, the other replicas receive empty batches.
    Scalar elements have no empty form: an incomplete last row of them is dropped, and a warning is logged.

    Args:
        strategy: The strategy whose replicas receive the batches.
        dataset_fn: From an `InputContext` to a dataset. It is called immediately, once per process (in the mode
            PER_REPLICA once per replica). Consecutive elements go to consecutive replicas.
        options: See `InputOptions`.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> def dataset_fn(context):
        ...     return mr.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))
        >>> batch = next(iter(mr.data.distribute_from_function(strategy, dataset_fn)))
        >>> [part.tolist() for part in strategy.experimental_local_results(batch)]
        [[0, 1], [2, 3]]

    TensorFlow: drops an incomplete last row of batches whose shapes are all known (``drop_remainder=True``).

    Raises:
        ArgumentError: `dataset_fn` does not return a dataset, or an option has no effect here.
    """
    called = "Strategy.distribute_datasets_from_function"
    if distributed.is_elastic():
        raise elastic_job_error(called, "each worker would read its own data")
    options = _checked(options, called, from_function=True)
    placer = Placer(
        strategy.device_assignment, options.experimental_fetch_to_device, len(_workers(strategy.device_assignment)) > 1
    )
    local_replicas = 1 if strategy.device_assignment is None else len(strategy.device_assignment.addressable_replicas)
    contexts = _contexts(strategy.device_assignment, placer.num_replicas, options.experimental_replication_mode)
    sources = [as_source(dataset_fn(context), options.batch_size, called) for context in contexts]
    return DistributedDataset(
        lambda: ElementsInTurn(sources, local_replicas, len(_workers(strategy.device_assignment))),
        placer,
        options,
        lambda: _spec_of_elements(sources[0].spec, placer.num_replicas),
        lambda: _cardinality(sources, local_replicas),
        sources[0].end_error,
    )


def _contexts(
    device_assignment: DeviceAssignment | None, replicas: int, mode: InputReplicationMode
) -> list[InputContext]:
    if mode is InputReplicationMode.PER_REPLICA and device_assignment is not None:
        return [InputContext(replicas, replica, replicas) for replica in device_assignment.addressable_replicas]
    workers = _workers(device_assignment)
    here = 0 if device_assignment is None else workers.index(jax.process_index())
    return [InputContext(len(workers), here, replicas)]


def _workers(device_assignment: DeviceAssignment | None) -> list[int]:
    """Returns the sorted indices of the processes whose devices hold replicas."""
    return sorted({0} if device_assignment is None else {device.process_index for device in device_assignment.devices})


def _worker_share(device_assignment: DeviceAssignment | None) -> WorkerShare | None:
    """Returns which part of the input this worker reads, as a `WorkerShare`; None if one worker runs all replicas."""
    workers = _workers(device_assignment)
    if device_assignment is None or len(workers) == 1:
        return None
    return WorkerShare(
        process=jax.process_index(),
        processes=tuple(workers),
        local_replicas=len(device_assignment.addressable_replicas),
        num_replicas=device_assignment.num_replicas,
    )


def _checked(options: object, called: str, from_function: bool) -> InputOptions:
    if options is None:
        return InputOptions()
    if not isinstance(options, InputOptions):
        raise ArgumentError(
            called,
            found=f"options={options!r} is a {type(options).__name__}",
            rule="options must be a mirrored.data.InputOptions",
            remedy="pass an InputOptions here, and tf.data options to dataset.with_options(...)",
        )
    options.check(called, from_function)
    return options


def _gives_scalars(source: Source) -> bool:
    leaves = jax.tree.leaves(source.spec, is_leaf=lambda part: isinstance(part, ArraySpec))
    return not all(leaf.shape for leaf in leaves)


def _with_mask(spec: PyTree, options: InputOptions) -> Any:
    """Returns `spec`, or (`spec`, mask spec) if ``last_batch="pad"`` adds a mask of the real examples to each batch."""
    if options.last_batch != "pad":
        return spec
    leaves = jax.tree.leaves(spec, is_leaf=lambda part: isinstance(part, ArraySpec))
    sizes = {leaf.shape[0] for leaf in leaves if leaf.shape}
    return spec, ArraySpec((sizes.pop() if len(sizes) == 1 else None,), np.dtype(bool))


def _spec_of_per_replica_batches(spec: PyTree, replicas: int) -> Any:
    def per_replica(leaf: ArraySpec) -> Any:
        if replicas == 1 or not leaf.shape:
            return leaf
        size = leaf.shape[0]
        known = size // replicas if size is not None and size % replicas == 0 else None
        return PerReplicaSpec((leaf.unbatched().batched(known),) * replicas)

    return map_specs(per_replica, spec)


def _spec_of_elements(spec: PyTree, replicas: int) -> Any:
    return map_specs(lambda leaf: leaf if replicas == 1 else PerReplicaSpec((leaf,) * replicas), spec)


def _cardinality(sources: list[Source], replicas: int) -> int:
    known = [one.cardinality for one in sources]
    if min(known) < 0:
        return min(known)
    if len(known) > 1:
        return max(known) if min(known) == max(known) or not _gives_scalars(sources[0]) else min(known)
    whole, rest = divmod(known[0], replicas)
    return whole + (rest > 0 and not _gives_scalars(sources[0]))
