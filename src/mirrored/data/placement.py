"""Splits global batches into per-replica batches, and moves them to the devices of a strategy."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias

import jax
import numpy as np

from mirrored._jax.arrays import aligned_empty, canonical, is_host_dtype, owned, put, put_shards
from mirrored._jax.trees import tree_flatten, tree_map
from mirrored._typing import HostArray
from mirrored.data.elements import Element
from mirrored.data.keys import as_keys, data_of, implementation
from mirrored.errors import ArgumentError, StructureError
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values.attributes import attribute
from mirrored.values.distributed_values import PerReplica

# Splits a global batch into per-replica batches. Pure functions on arrays, without devices or strategies.
#
# A batch of m examples is split over n replicas into contiguous per-replica batches of ceil(m / n) examples. Later
# replicas may get fewer examples, or none (shape ``[0, ...]``), as in `tf.distribute`.

PyTree: TypeAlias = Any
LastBatch: TypeAlias = Literal["split", "pad", "drop"]

LAST_BATCH_RULES: tuple[LastBatch, ...] = ("split", "pad", "drop")


BATCH_DATASET: Final = "call .batch(global_batch_size) on the dataset before it is distributed"


def batch_size(batch: PyTree, called: str = "split", remedy: str = BATCH_DATASET) -> int:
    """Returns the number of examples in a batch: the size of the first dim, equal in all arrays.

    Args:
        batch: A pytree of arrays ``[batch, ...]``.
        called: The function that the user called, for messages.
        remedy: How the user creates batches, for messages.

    Raises:
        StructureError: A leaf has no leading dim, the leading dims differ, or there is no leaf. Or the batch contains a
            sparse matrix of JAX.

    Example:
        >>> batch_size({"x": np.zeros((6, 2)), "y": np.zeros(6)})
        6
    """
    _refuse_sparse(batch, called)
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree_util.tree_leaves(batch)}
    if len(sizes) == 1 and () not in sizes:
        return int(sizes.pop()[0])
    return _refuse_sizes(batch, called, remedy)


def _refuse_sparse(batch: PyTree, called: str) -> None:
    """Raises StructureError for JAX's sparse matrices, because their arrays do not have one row per example."""
    sparse: Any = sys.modules.get("jax.experimental.sparse")  # otherwise the program cannot have created one
    if sparse is None:
        return

    def is_sparse(part: object) -> bool:
        return isinstance(part, sparse.JAXSparse)

    for path, leaf in jax.tree_util.tree_leaves_with_path(batch, is_leaf=is_sparse):
        if is_sparse(leaf):
            raise StructureError(
                called,
                found=f"the leaf {_name(path)} is a sparse matrix: {leaf!r}",
                rule="every array of a batch must have one row per example; those of a sparse matrix have an entry "
                "per stored element",
                remedy="pass matrix.todense()",
            )


def _refuse_sizes(batch: PyTree, called: str, remedy: str) -> NoReturn:
    found: int | None = None
    arrays = [np.shape(leaf) for leaf in jax.tree_util.tree_leaves(batch) if np.shape(leaf)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = np.shape(leaf)
        if not shape:
            raise StructureError(
                called,
                found=f"the leaf {_name(path)} is a scalar"
                + (f" beside arrays of the shape {arrays[0]}" if arrays else ": the dataset is not batched"),
                rule="every leaf of a distributed batch must have the batch dim as its first dim",
                remedy=f"if these are features of one example, the dataset is not batched: {remedy}; a scalar of a "
                f"batch, as from enumerate: drop it, or repeat it for each example (numpy.full({arrays[0][0]}, x))"
                if arrays
                else remedy,
            )
        if found is not None and shape[0] != found:
            raise StructureError(
                called,
                found=f"the leaf {_name(path)} has {shape[0]} examples, the leaves before it {found}",
                rule="all leaves of a batch must have the same number of examples",
                remedy="if these are features of one example, the dataset is not batched: "
                f"{remedy}; otherwise check the function that creates the batches",
            )
        found = shape[0]
    raise StructureError(
        called,
        found=f"the batch {batch!r} contains no array",
        rule="a batch must be a pytree with at least one array",
        remedy="yield the arrays of the batch",
    )


def share_bounds(size: int, num_replicas: int) -> list[tuple[int, int]]:
    """Returns the (start, stop) indices of each replica's slice of a global batch.

    Args:
        size: Number of examples in the global batch (m).
        num_replicas: Number of replicas (n).

    Example:
        >>> share_bounds(5, 4)
        [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    if num_replicas < 1:
        raise ArgumentError(
            "split",
            found=f"num_replicas={num_replicas}",
            rule="num_replicas must be at least 1",
            remedy="pass strategy.num_replicas_in_sync",
        )
    each = -(-size // num_replicas)
    return [(min(r * each, size), min((r + 1) * each, size)) for r in range(num_replicas)]


def split(batch: PyTree, num_replicas: int) -> list[PyTree]:
    """Splits a global batch into contiguous slices, one batch per replica, without copying.

    Args:
        batch: A pytree of arrays ``[batch, ...]``.
        num_replicas: Number of replicas.

    Returns:
        One pytree per replica, of arrays ``[ceil(batch / num_replicas) or less, ...]``.

    Raises:
        StructureError: The batch is not a pytree of arrays with one common leading dim.

    Example:
        >>> [part.tolist() for part in split(np.arange(5), 4)]
        [[0, 1], [2, 3], [4], []]

    TensorFlow: splits like `experimental_distribute_dataset`.
    """
    bounds = share_bounds(batch_size(batch), num_replicas)
    return [tree_map(lambda leaf, low=low, high=high: leaf[low:high], batch) for low, high in bounds]


def pad(batch: PyTree, num_replicas: int, size: int | None = None) -> tuple[PyTree, np.ndarray]:
    """Pads a batch so that it splits evenly over the replicas, and returns a mask that marks the real examples.

    Padding repeats the last example: its loss is as finite as that of a real example, and the mask multiplies it by
    zero. A batch without examples is padded with zeros.

    Args:
        batch: A pytree of arrays ``[batch, ...]``.
        num_replicas: The padded size is a multiple of this number.
        size: Minimum padded size. Pass the size of the full batches to give all batches one shape.

    Returns:
        The padded batch ``[padded, ...]``, and the mask ``bool[padded]``: True for real examples.

    Example:
        >>> pad(np.array([7, 8, 9]), 2)
        (array([7, 8, 9, 9]), array([ True,  True,  True, False]))
    """
    real = batch_size(batch, "pad")
    padded = -(-max(real, size or 0) // num_replicas) * num_replicas
    mask = np.arange(padded) < real
    if padded == real:
        return batch, mask
    return tree_map(lambda leaf: _filled(np.asarray(leaf), padded), batch), mask


def check_last_batch(rule: str, called: str) -> None:
    """Raises ArgumentError if `rule` is not a valid value of the option `last_batch`."""
    if rule not in LAST_BATCH_RULES:
        raise ArgumentError(
            called,
            found=f"last_batch={rule!r}",
            rule='last_batch must be "split", "pad" or "drop"',
            remedy='use "pad" to compile the step once, or "split" for the per-replica batches of tf.distribute',
        )


def _filled(leaf: np.ndarray, padded: int) -> np.ndarray:
    if leaf.shape[0] == 0:
        # An array of objects has strings, as in `elements.pad_and_stack`; NumPy would fill it with the integer 0.
        return np.full((padded, *leaf.shape[1:]), b"" if leaf.dtype == object else np.zeros((), leaf.dtype), leaf.dtype)
    out = aligned_empty((padded, *leaf.shape[1:]), leaf.dtype)
    # A slice, because an object that is itself a sequence would be spread over the rows.
    out[: leaf.shape[0]], out[leaf.shape[0] :] = leaf, leaf[-1:]
    return out


def _name(path: tuple[Any, ...]) -> str:
    return f"element{jax.tree_util.keystr(path)}"


# Places batches on the replicas' devices, with the sharding that a compiled step expects.


@dataclasses.dataclass(frozen=True)
class Placer:
    """A helper that moves batches from host memory to the devices of a strategy, as per-replica values.

    Attributes:
        device_assignment: The device of each replica; None: one replica, on JAX's default device.
        to_device: Whether to place components on devices. If False, they stay in host memory.
        own_batches: With several workers: whether each worker reads separate batches for its own replicas. The workers
            coordinate their shapes later (`mirrored.data.readers`). If False, all workers read the same global
            batches, and each keeps the per-replica batches of its own replicas.
        num_replicas: The total number of replicas, of all workers.
        spans_processes: Whether there are several workers.
    """

    device_assignment: DeviceAssignment | None
    to_device: bool = True
    own_batches: bool = False
    num_replicas: int = dataclasses.field(init=False)
    spans_processes: bool = dataclasses.field(init=False)
    _firsts: Sequence[int] = dataclasses.field(init=False, repr=False)  # the first replica of each device

    def __post_init__(self) -> None:
        assigned = self.device_assignment
        firsts = () if assigned is None else tuple(map(assigned.slots.first_on, range(assigned.slots.devices)))
        object.__setattr__(self, "num_replicas", 1 if assigned is None else assigned.num_replicas)
        object.__setattr__(self, "spans_processes", assigned is not None and assigned.spans_processes)
        object.__setattr__(self, "_firsts", firsts)

    def batch(self, batch: Element) -> Any:
        """Splits a global batch into per-replica batches, and moves each to its replica's device.

        Per-replica batches of equal size become one array ``[slots, per_replica_batch, ...]`` (`topology.slots`),
        sharded over all devices; otherwise they become a tuple of arrays. Devices alias memory that the pipeline owns
        if they can read it. Other memory is copied, since the source may reuse it. With one replica, the result is a
        plain array.
        """
        if self.device_assignment is None or self.device_assignment.num_replicas == 1:
            return tree_map(lambda leaf: self._put(leaf, 0), batch)
        leaves, treedef = tree_flatten(batch)
        count = leaves[0].shape[0]
        shared_by = (
            len(self.device_assignment.addressable_replicas)
            if self.own_batches
            else self.device_assignment.num_replicas
        )
        even = bool(count) and count % shared_by == 0
        if even and self.to_device and not self.own_batches:
            return treedef.unflatten([self._stacked(leaf, shared_by, count // shared_by) for leaf in leaves])
        bounds = share_bounds(count, shared_by)
        if not self.own_batches:
            bounds = [bounds[replica] for replica in self.device_assignment.addressable_replicas]
        # A process does not see the shapes on other processes, so it cannot tell later whether all are equal.
        ragged = self.spans_processes and not even
        return tree_map(lambda leaf: self._components([leaf[low:high] for low, high in bounds], ragged), batch)

    def elements(self, elements: Sequence[Any]) -> Any:
        """Moves this process's per-replica batches from host memory, each to the device of its replica.

        With one replica, the result is that replica's element.
        """
        if self.num_replicas == 1:
            return tree_map(lambda leaf: self._put(leaf, 0), elements[0])
        return tree_map(lambda *leaves: self._components(leaves), *elements)

    def _stacked(self, leaf: Any, shared_by: int, size: int) -> PerReplica:
        assert self.device_assignment is not None
        impl = implementation(leaf.dtype)
        if impl is None and is_host_dtype(leaf.dtype):
            parts = np.split(owned(leaf), shared_by)
            here = self.device_assignment.addressable_replicas
            return PerReplica.of_components([parts[replica] for replica in here], self.device_assignment)
        sharding = self.device_assignment.sharded
        array = leaf if impl is None else data_of(leaf)
        rows = array.reshape(shared_by, size, *array.shape[1:])
        if sharding.is_fully_addressable:
            placed = put_shards(self._parts(rows), sharding, self.device_assignment.devices)
        else:
            copy = self.device_assignment.slots.stacked(owned(canonical(rows)))
            placed = jax.make_array_from_callback(copy.shape, sharding, copy.__getitem__)
        return PerReplica.from_stacked(placed if impl is None else as_keys(placed, impl), self.device_assignment)

    def _parts(self, rows: HostArray) -> list[HostArray]:
        """Splits an array ``[replicas, ...]`` into one array per device, padded to equal leading dims."""
        assert self.device_assignment is not None
        local, parts = self.device_assignment.local, []
        for first in self._firsts:
            # An empty slot may hold any row, such as that of the next device's first replica.
            part = rows[first : first + local]
            parts.append(part if len(part) == local else _filled(part, local))
        return parts

    def _components(self, batches: Sequence[Any], is_ragged: bool = False) -> PerReplica:
        assert self.device_assignment is not None
        replicas = self.device_assignment.addressable_replicas
        placed = [self._put(batch, replica) for batch, replica in zip(batches, replicas, strict=True)]
        return PerReplica.of_components(placed, self.device_assignment, is_ragged=is_ragged)

    def _put(self, leaf: HostArray | np.generic | bytes, replica: int) -> Any:
        dtype = attribute(leaf, "dtype", np.dtype(object))
        if is_host_dtype(dtype):
            impl = implementation(dtype)
            return owned(leaf) if impl is None else as_keys(self._put(data_of(leaf), replica), impl)  # type: ignore[arg-type]
        if not self.to_device:
            return put(leaf, jax.local_devices(backend="cpu")[0])
        return put(leaf, None if self.device_assignment is None else self.device_assignment.device_of(replica))
