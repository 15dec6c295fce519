"""State of the process that a test may leave behind."""

from __future__ import annotations

import contextlib

import mirrored.tf as tf


def reset() -> None:
    """Restores what a failed test may not have restored."""
    with contextlib.suppress(Exception):
        tf.distribute.experimental_set_strategy(None)
    tf.config.run_functions_eagerly(False)
