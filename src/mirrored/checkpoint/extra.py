"""Imports the optional dependency Orbax when checkpoints are first used."""

from __future__ import annotations

import functools
from typing import Any

from mirrored.extras import load


@functools.cache
def engine() -> Any:
    """Imports and returns `mirrored.checkpoint.engine`; raises an error if Orbax is not installed.

    Raises:
        MissingExtraError: Orbax is not installed.
    """
    name = "mirrored.checkpoint"
    return load(f"{name}.engine", called=name, extra="checkpoint", package="orbax-checkpoint")
