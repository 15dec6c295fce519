"""Makes Keras' TensorBoard callback work without TensorFlow: it writes through `mirrored.tf.summary`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from mirrored.integrations.keras.backend import load
from mirrored.patches import replace

keras = load()


def connect_tensorboard() -> None:
    """Replaces the writer of `keras.callbacks.TensorBoard`, which is TensorFlow's, if TensorFlow is not installed."""
    if importlib.util.find_spec("tensorflow") is not None:
        return
    callback: Any = keras.callbacks.TensorBoard
    replace("keras", callback, "summary", property(_summary, doc="The summary writer."))
    replace("keras", callback, "_write_keras_model_summary", _without_graph(callback._write_keras_model_summary))


def _summary(callback: Any) -> Any:
    # Loaded lazily: the facade depends on this package. If an extra is missing, the facade's error names it.
    return importlib.import_module("mirrored.tf").summary


def _without_graph(write: Callable[..., None]) -> Callable[..., None]:
    """Omits the graph of the model, which needs a TensorFlow format."""

    @functools.wraps(write)
    def without_graph(self: Any) -> None:
        return None

    return without_graph
