"""Imports Keras with its JAX backend."""

from __future__ import annotations

import os
import sys
from typing import Any

from mirrored import extras
from mirrored.errors import ContextError


def load() -> Any:
    """Imports Keras with its JAX backend, and returns the module `keras`.

    Raises:
        MissingExtraError: Keras is not installed.
        ContextError: Keras is already loaded with another backend.
    """
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "jax"
    keras = extras.load("keras", called="mirrored.integrations.keras", extra="keras")
    if keras.backend.backend() != "jax":
        raise ContextError(
            "mirrored.integrations.keras",
            found=f"Keras is running on the backend {keras.backend.backend()!r}",
            rule="Keras must run on the JAX backend for models of a strategy",
            remedy="write at the top of the program, before the first import of keras: "
            "import os; os.environ['KERAS_BACKEND'] = 'jax'",
        )
    return keras
