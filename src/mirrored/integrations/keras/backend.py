"""Imports Keras on the JAX backend, and copies its thread-local state."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from typing import Any

from mirrored import extras
from mirrored.errors import ContextError

# Loads Keras on the JAX backend.


def load() -> Any:
    """Returns the module `keras`, running on the JAX backend.

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


# Copies Keras' thread-local state (scopes, names, the distribution) to other threads.

keras = load()


def keras_state() -> Callable[[], None]:
    """Captures Keras' state of the current thread, and returns a function that applies it to the calling thread."""
    tracker = keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER
    here = {name: copy.copy(value) if isinstance(value, list) else value for name, value in vars(tracker).items()}
    return lambda: vars(tracker).update(here)
