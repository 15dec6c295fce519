"""Builds a model from the first batch of a `keras.utils.PyDataset` without a pass over the data, as in TensorFlow.

Keras on JAX reads the batch in a pass of its own, and ends the pass. Its worker threads have read ahead by then: the
batches stay queued, so that each later pass would begin with batches of the previous one, and `predict` would return
its results in another order. `predict` would also call `on_epoch_end` before the first batch. TensorFlow reads the
first batches by their indices, outside of a pass.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mirrored.integrations.keras.loops import loop_in_progress
from mirrored.integrations.keras.private import EpochIterator, JAXEpochIterator, PyDatasetAdapter
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Model
    from keras.utils import PyDataset


class _First:
    """The first batch of a `PyDataset`, as a dataset of one batch, or of none."""

    def __init__(self, dataset: PyDataset) -> None:
        self._dataset = dataset
        self.num_batches = 1 if dataset.num_batches is None else min(1, dataset.num_batches)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def connect_first_batch(own: type[Any]) -> None:
    """Patches Keras' loops to read the batch with which they build a model from a `PyDataset` without a pass.

    Args:
        own: The class of datasets of which Keras reads the batch in a pass.
    """
    replace("keras", EpochIterator, "_enumerate_iterator", _building(EpochIterator._enumerate_iterator, own))
    replace("keras", EpochIterator, "reset", _without_end(EpochIterator.reset, own))


def building_from_first(build: Callable[..., Any], own: type[Any]) -> Callable[..., Any]:
    """Wraps `Trainer._symbolic_build`, which `fit` and `evaluate` call, to read a batch without a pass if it needs one.

    Args:
        build: The method.
        own: The class of datasets of which Keras reads the batch in a pass.
    """

    @functools.wraps(build)
    def building(self: Model, iterator: Any = None, data_batch: Any = None) -> Any:
        return build(
            self, iterator=_steps(iterator) if _is_read_by_index(iterator, own) else iterator, data_batch=data_batch
        )

    return building


def _is_read_by_index(iterator: Any, own: type[Any]) -> bool:
    adapter = getattr(iterator, "data_adapter", None)
    return isinstance(adapter, PyDatasetAdapter) and not isinstance(adapter.py_dataset, own)


def _steps(iterator: JAXEpochIterator) -> Iterator[tuple[int, int, Any]]:
    """Yields one step, as Keras' iterator: its first and last number, and an iterator over batches."""
    first = copy.copy(iterator)
    adapter = first.data_adapter = copy.copy(iterator.data_adapter)
    adapter.py_dataset, adapter.enqueuer, adapter.shuffle = _First(adapter.py_dataset), None, False
    if adapter.py_dataset.num_batches:
        yield 0, 0, first._get_iterator()


def _building(enumerate_steps: Callable[..., Any], own: type[Any]) -> Callable[..., Any]:
    @functools.wraps(enumerate_steps)
    def building(self: EpochIterator) -> Iterator[Any]:
        loop = loop_in_progress()
        is_read = loop is not None and loop.builds and _is_read_by_index(self, own)
        yield from _steps(self) if is_read else enumerate_steps(self)

    return building


def _without_end(reset: Callable[..., None], own: type[Any]) -> Callable[..., None]:
    @functools.wraps(reset)
    def resetting(self: EpochIterator) -> None:
        loop = loop_in_progress()
        if loop is None or not loop.builds:
            return reset(self)
        loop.builds = False
        return None if _is_read_by_index(self, own) else reset(self)  # no pass has begun

    return resetting
