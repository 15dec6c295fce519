"""Keras' TensorBoard callback without TensorFlow: it writes through `mirrored.tf.summary`."""

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
    """Gives `keras.callbacks.TensorBoard` a writer where TensorFlow, whose writer it asks for, is not installed."""
    if importlib.util.find_spec("tensorflow") is not None:
        return
    callback: Any = keras.callbacks.TensorBoard
    replace("keras", callback, "summary", property(_summary, doc="Where values are written."))
    replace("keras", callback, "_write_keras_model_summary", _without_graph(callback._write_keras_model_summary))


def _summary(callback: Any) -> Any:
    # The facade lies above this package and is loaded for its writer alone; it names the extra if that is missing.
    return importlib.import_module("mirrored.tf").summary


def _without_graph(write: Callable[..., None]) -> Callable[..., None]:
    """The drawing of the model is in a format of TensorFlow's own: it is left out."""

    @functools.wraps(write)
    def without_graph(self: Any) -> None:
        return None

    return without_graph
