"""Cutting a global batch into one share per replica. Pure logic: arrays in, arrays out, no devices, no strategies.

A batch of m examples over n replicas is cut into contiguous shares of ceil(m / n) examples, so later replicas may get
fewer, or none (shape ``[0, ...]``): what `tf.distribute` does.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NoReturn, TypeAlias

import jax
import numpy as np

from mirrored._jax.host_memory import aligned_empty
from mirrored.errors import ArgumentError, StructureError

PyTree: TypeAlias = Any
LastBatch: TypeAlias = Literal["split", "pad", "drop"]

LAST_BATCH_RULES: tuple[LastBatch, ...] = ("split", "pad", "drop")


BATCH_DATASET: Final = "call .batch(global_batch_size) on the dataset before it is distributed"


def batch_size(batch: PyTree, called: str = "split", remedy: str = BATCH_DATASET) -> int:
    """The number of examples of a batch: the leading dim that all its leaves share.

    Args:
        batch: A pytree of arrays ``[batch, ...]``.
        called: What the user called, for messages.
        remedy: How the user makes batches, for messages.

    Raises:
        StructureError: A leaf has no leading dim, the leaves disagree about it, or there is no leaf.

    Example:
        >>> batch_size({"x": np.zeros((6, 2)), "y": np.zeros(6)})
        6
    """
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree_util.tree_leaves(batch)}
    if len(sizes) == 1 and () not in sizes:
        return int(sizes.pop()[0])
    return _refuse_sizes(batch, called, remedy)


def _refuse_sizes(batch: PyTree, called: str, remedy: str) -> NoReturn:
    found: int | None = None
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = np.shape(leaf)
        if not shape:
            raise StructureError(
                called,
                found=f"the leaf {_name(path)} is a scalar: the dataset is not batched",
                rule="a distributed batch has the examples along the first dim of every leaf",
                remedy=remedy,
            )
        if found is not None and shape[0] != found:
            raise StructureError(
                called,
                found=f"the leaf {_name(path)} has {shape[0]} examples, the leaves before it {found}",
                rule="all leaves of a batch have the same number of examples",
                remedy="if these are features of one example, the dataset is not batched: "
                f"{remedy}; else check the function that makes the batches",
            )
        found = shape[0]
    raise StructureError(
        called,
        found=f"the batch {batch!r} has no array in it",
        rule="a batch is a pytree with at least one array",
        remedy="yield the arrays of the batch",
    )


def share_bounds(size: int, num_replicas: int) -> list[tuple[int, int]]:
    """Where the shares of a batch begin and end.

    Args:
        size: Examples in the batch (m).
        num_replicas: How many shares (n).

    Example:
        >>> share_bounds(5, 4)
        [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    if num_replicas < 1:
        raise ArgumentError(
            "split",
            found=f"num_replicas={num_replicas}",
            rule="a batch is cut for at least one replica",
            remedy="pass strategy.num_replicas_in_sync",
        )
    share = -(-size // num_replicas)
    return [(min(r * share, size), min((r + 1) * share, size)) for r in range(num_replicas)]


def split(batch: PyTree, num_replicas: int) -> list[PyTree]:
    """Cuts a global batch into one contiguous share per replica, without copying.

    Args:
        batch: A pytree of arrays ``[batch, ...]``.
        num_replicas: How many shares.

    Returns:
        One pytree per replica, of arrays ``[ceil(batch / num_replicas) or less, ...]``.

    Raises:
        StructureError: The batch is not a pytree of arrays with one leading dim.

    Example:
        >>> [share.tolist() for share in split(np.arange(5), 4)]
        [[0, 1], [2, 3], [4], []]

    TensorFlow: the same shares as `experimental_distribute_dataset`.
    """
    bounds = share_bounds(batch_size(batch), num_replicas)
    return [jax.tree.map(lambda leaf, low=low, high=high: leaf[low:high], batch) for low, high in bounds]


def pad(batch: PyTree, num_replicas: int, size: int | None = None) -> tuple[PyTree, np.ndarray]:
    """Fills a batch up so that it splits evenly, and says which examples are real.

    Padding repeats the last example, so that a loss of it is as finite as a real one and vanishes under the mask;
    a batch without examples is padded with zeros.

    Args:
        batch: A pytree of arrays ``[batch, ...]``.
        num_replicas: The padded size is a multiple of it.
        size: Pad at least to this many examples: the size of the full batches, so that all have one shape.

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
    return jax.tree.map(lambda leaf: _filled(np.asarray(leaf), padded), batch), mask


def check_last_batch(rule: str, called: str) -> None:
    """Refuses a `last_batch` rule that does not exist."""
    if rule not in LAST_BATCH_RULES:
        raise ArgumentError(
            called,
            found=f"last_batch={rule!r}",
            rule='last_batch is "split", "pad" or "drop"',
            remedy='use "pad" for one compilation per epoch, "split" for the shares that tf.distribute gives',
        )


def _filled(leaf: np.ndarray, padded: int) -> np.ndarray:
    if leaf.shape[0] == 0:
        return np.zeros((padded, *leaf.shape[1:]), leaf.dtype)
    out = aligned_empty((padded, *leaf.shape[1:]), leaf.dtype)
    out[: leaf.shape[0]], out[leaf.shape[0] :] = leaf, leaf[-1]
    return out


def _name(path: tuple[Any, ...]) -> str:
    return f"element{jax.tree_util.keystr(path)}"
