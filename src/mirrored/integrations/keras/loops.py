"""Tracks the current Keras loop, such as `fit`, and gives host batches to an overridden ``train_step(self, data)``.

Keras gives such a step batches on the host, which are split over the replicas here. With several workers, all of them
read the same batches, or, from a distributed dataset, each one those of its own replicas.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import jax

from mirrored._blocks import contextmanager, setting
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.data.placement import Placer, batch_size
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.batches import check_same
from mirrored.integrations.keras.private import JAXEpochIterator
from mirrored.patches import replace
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values.distributed_values import PerReplica

if TYPE_CHECKING:
    from keras import Layer, Model

keras = load()
_GLOBAL_BATCH: Final = "pass batches, whose arrays have one row per example"


@dataclasses.dataclass(frozen=True)
class Parts:
    """The division of the rows of this worker's batch among its replicas.

    Attributes:
        sizes: The number of rows of each replica of this worker.
        is_ragged: Whether some replicas, of any worker, have another number of rows.
    """

    sizes: tuple[int, ...]
    is_ragged: bool


class Source(Protocol):
    """Protocol of a dataset that a Keras loop reads; tells how its rows are divided among the replicas."""

    has_parts: bool
    parts: Parts | None


@dataclasses.dataclass
class Loop:
    """A call of `fit`, `evaluate`, `predict`, or a single-batch method such as `train_on_batch`.

    Attributes:
        called: The name of the method.
        takes_data_alone: Whether the step is TensorFlow-style, see `steps.takes_data_alone`.
        source: The batches of the dataset that the loop reads; None if it reads other data.
        builds: Whether the loop, which is that of `predict`, now reads a batch to build the model.
        is_compared: Whether this worker's first batch was compared with those of the others.
    """

    called: str
    takes_data_alone: bool
    source: Source | None
    builds: bool = False
    is_compared: bool = False


T = TypeVar("T")


class InProgress(Generic[T]):
    """A context variable that refers weakly to the call of `fit`, `evaluate` or `predict` that is in progress.

    Threads that read a dataset ahead have a copy of the reader's context variables. A strong reference to a call that
    holds the iterator would keep the iterator alive as long as its own threads, and these end with the iterator.

    Args:
        name: The name of the context variable.
    """

    def __init__(self, name: str) -> None:
        self._variable: contextvars.ContextVar[weakref.ref[T] | None] = contextvars.ContextVar(name, default=None)

    def get(self) -> T | None:
        """Returns the `fit`, `evaluate` or `predict` call in progress; None outside of these calls."""
        found = self._variable.get()
        return None if found is None else found()

    @contextmanager
    def within(self, call: T) -> Iterator[None]:
        """Context manager that marks `call` as the `fit`, `evaluate` or `predict` call in progress, and keeps it."""
        with setting(self._variable, weakref.ref(call)):
            yield


_current: Final = InProgress[Loop]("mirrored.keras_loop")


def within_loop(loop: Loop) -> AbstractContextManager[None]:
    """Context manager that makes `loop` the current Keras loop; a nested loop, such as validation, takes its place."""
    return _current.within(loop)


def loop_in_progress() -> Loop | None:
    """Returns the current Keras loop; None outside of a loop."""
    return _current.get()


def called_method(default: str) -> str:
    """Returns the name of the model's method whose loop is in progress; `default` outside of a loop."""
    loop = _current.get()
    return default if loop is None else loop.called


def step_builds(model: Model | Layer, takes_data_alone: bool = False) -> bool:
    """Returns whether a model has no `call`, because its step ``(self, data)`` calls the layers, and so builds them.

    Args:
        model: The model.
        takes_data_alone: Whether its step is TensorFlow-style, outside of a loop.
    """
    loop = _current.get()
    alone = takes_data_alone if loop is None else loop.takes_data_alone
    return alone and type(model).call in (keras.Model.call, keras.layers.Layer.call)


def placement_for(device_assignment: DeviceAssignment | None) -> Callable[[PyTree], Any]:
    """Returns a function that splits a batch of the current loop over the replicas and moves it to their devices.

    It raises StructureError for a batch that cannot be split: a leaf is a scalar, or has another number of rows.
    """
    placer = Placer(device_assignment)

    def place(batch: PyTree) -> Any:
        loop = _current.get()
        if placer.num_replicas > 1:
            batch_size(batch, f"keras.Model.{called_method('fit')}", _GLOBAL_BATCH)
        if not placer.spans_processes or loop is None:
            return placer.batch(batch)
        if loop.source is not None and loop.source.has_parts:
            assert loop.source.parts is not None  # the batch comes from there
            return _placed_parts(placer, batch, loop.source.parts)
        if not loop.is_compared:
            leaves = jax.tree_util.tree_leaves_with_path(batch)
            check_same(loop.called, {f"the first batch{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves})
            loop.is_compared = True
        return placer.batch(batch)

    return place


def _placed_parts(placer: Placer, batch: PyTree, parts: Parts) -> Any:
    ends = list(itertools.accumulate(parts.sizes))
    bounds = list(zip([0, *ends], ends, strict=False))
    placed = placer.elements([tree_map(lambda leaf, low=low, high=high: leaf[low:high], batch) for low, high in bounds])
    if not parts.is_ragged:
        return placed
    return tree_map(
        lambda value: PerReplica.of_components(value.values, value.device_assignment, is_ragged=True),
        placed,
        is_leaf=lambda value: isinstance(value, PerReplica),
    )


def connect_loops() -> None:
    """Patches the iterator of Keras' loops so that ``train_step(self, data)`` gets batches that are not prefetched."""
    replace("keras", JAXEpochIterator, "_get_iterator", _without_read_ahead(JAXEpochIterator._get_iterator))


def _without_read_ahead(get_iterator: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' `_get_iterator` so that ``train_step(self, data)`` gets host batches that are not prefetched.

    On accelerators, Keras prefetches one batch to the first device. A TensorFlow-style step copies each batch from
    the host to all devices, and a backup stores the position after the last batch that was read.
    """

    @functools.wraps(get_iterator)
    def getting(self: JAXEpochIterator) -> Any:
        loop = _current.get()
        if loop is not None and loop.takes_data_alone and keras.distribution.distribution() is None:
            return self.data_adapter.get_jax_iterator()
        return get_iterator(self)

    return getting
