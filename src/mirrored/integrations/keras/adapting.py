"""Lets `adapt` of Keras' preprocessing layers read datasets of `mirrored.data`, lists and generators of batches.

Keras first asks whether the data is a `tf.data.Dataset`, which raises an ImportError without TensorFlow.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrored.data import DistributedDataset
from mirrored.data.distributed import DistributedIterator
from mirrored.errors import ArgumentError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import preprocessing
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Layer

keras = load()


class _TensorFlow:
    """A stand-in for TensorFlow in modules of Keras, to which the datasets of `mirrored.data` are `tf.data.Dataset`.

    It loads neither TensorFlow nor those datasets: the program that has one has loaded its class.
    """

    @property
    def data(self) -> _TensorFlow:
        return self

    @property
    def Dataset(self) -> tuple[type, ...]:
        """The classes of datasets, for `isinstance`."""
        pipelines = sys.modules.get("mirrored.data.pipeline.dataset")
        theirs = getattr(sys.modules.get("tensorflow"), "data", None)
        return tuple(module.Dataset for module in (pipelines, theirs) if module is not None)

    def is_tensor(self, value: object) -> bool:
        """Returns whether a value is a tensor of TensorFlow, if that is loaded."""
        tensorflow = sys.modules.get("tensorflow")
        return tensorflow is not None and bool(tensorflow.is_tensor(value))


def connect_adapting() -> None:
    """Patches `Normalization` and `Discretization`, the layers with `adapt` that do not compute with TensorFlow."""
    layers: tuple[tuple[Any, Any], ...] = (
        (preprocessing.normalization, keras.layers.Normalization),
        (preprocessing.discretization, keras.layers.Discretization),
    )
    for module, layer in layers:
        replace("keras", module, "tf", _TensorFlow())
        replace("keras", layer, "adapt", _of_whole_batches(layer.adapt))


def _of_whole_batches(adapt: Callable[..., None]) -> Callable[..., None]:
    """Wraps `adapt` to refuse distributed datasets, of which each worker has a part."""

    @functools.wraps(adapt)
    def adapting(self: Layer, data: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(data, (DistributedDataset, DistributedIterator)):
            raise ArgumentError(
                f"keras.layers.{type(self).__name__}.adapt",
                found=f"a {type(data).__name__}, whose elements are per-replica values",
                rule="adapt reads whole batches, equally on all workers",
                remedy="pass the dataset before it is distributed: layer.adapt(dataset)",
            )
        adapt(self, data, *args, **kwargs)

    return adapting
