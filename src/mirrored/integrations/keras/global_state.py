"""Copies Keras' thread-local state (scopes, names, the distribution) to other threads."""

from __future__ import annotations

import copy
from collections.abc import Callable

from mirrored.integrations.keras.backend import load

keras = load()


def keras_state() -> Callable[[], None]:
    """Captures the state of this thread, and returns a function that applies it to the calling thread."""
    tracker = keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER
    here = {name: copy.copy(value) if isinstance(value, list) else value for name, value in vars(tracker).items()}
    return lambda: vars(tracker).update(here)
