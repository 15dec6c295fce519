"""Errors and warnings of iterators over datasets that are closed, interrupted, exhausted or already distributed."""

from __future__ import annotations

import warnings
from typing import Final, NoReturn

from mirrored.errors import InputError, TransformationError


def closed_meanwhile_error(called: str = "DatasetIterator") -> InputError:
    """Creates the error for a thread that is waiting for an element when another thread closes the iterator."""
    return InputError(
        called,
        found="another thread closed it while this thread waited for its next element",
        rule="a closed iterator cannot return elements",
        remedy="create a new one with iter(dataset)",
    )


def closed_error(called: str = "DatasetIterator") -> InputError:
    """Creates the error for an iterator that was closed, by the program or because of an error in its pipeline."""
    return InputError(
        called,
        found="it was used after close(), or after it raised an error",
        rule="a closed iterator cannot return elements",
        remedy="create a new one with iter(dataset)",
    )


def interrupted_error(called: str) -> InputError:
    """Creates the error for an iterator that an interrupt stopped while it read a batch or restored a position."""
    return InputError(
        called,
        found="an interrupt, such as Ctrl-C or sys.exit(), stopped it in an earlier call",
        rule="after an interrupt an iterator returns the batches that were ready before it, and no others",
        remedy="continue with iterator.set_state(iterator.get_state()), or create a new one with iter(dataset)",
    )


def warn_exhausted(kind: str) -> None:
    """Warns that a `for` loop over an iterator has no iterations, because the iterator is already exhausted."""
    warnings.warn(
        f"{kind}: a loop over an exhausted iterator runs no steps. Loop over the dataset instead, which starts "
        "a new epoch: `for batch in dataset`",
        stacklevel=3,
    )


_TRANSFORMATIONS: Final = frozenset(
    "map filter batch padded_batch unbatch rebatch shuffle repeat take skip shard cache prefetch interleave flat_map "
    "zip concatenate enumerate window ignore_errors with_options apply reduce random_map as_numpy_iterator".split()
)


def refuse_transformation(kind: str, name: str) -> NoReturn:
    """Raises the error for calling a method such as `map` on a dataset that is already distributed.

    Raises:
        TransformationError: `name` is a transformation of datasets. The error says to apply it before distribution.
        AttributeError: `name` is anything else.
    """
    if name not in _TRANSFORMATIONS:
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
    raise TransformationError(
        f"{kind}.{name}",
        found="the dataset is already distributed: its elements are per-replica values on devices",
        rule="transformations must be applied before the dataset is distributed",
        remedy=f"call strategy.experimental_distribute_dataset(dataset.{name}(...)) on the original dataset, or move "
        "per-replica computation into the function passed to strategy.run",
    )
