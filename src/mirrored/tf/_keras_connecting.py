"""Connects Keras in programs that import it next to `mirrored.tf`, with what `tf.keras` adds."""

from __future__ import annotations

import importlib
import importlib.util
import sys

_INTEGRATION = "mirrored.integrations.keras"


def connect() -> None:
    """Connects Keras to strategies and datasets, and its random numbers to `tf.random`.

    Does nothing if the modules that connect Keras are themselves importing it: they connect it at their end.
    """
    if importlib.util.find_spec(_INTEGRATION) is None:  # a copy of the library without it
        return
    for name in (_INTEGRATION, "mirrored.tf.keras"):
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            return
    importlib.import_module(_INTEGRATION).connect()
    importlib.import_module("mirrored.tf.keras")
