"""The optional extra "checkpoint": Orbax, loaded on first use."""

from __future__ import annotations

import functools
from typing import Any

from mirrored.extras import load


@functools.cache
def engine() -> Any:
    """`mirrored.checkpoint.engine`, which needs Orbax.

    Raises:
        MissingExtraError: Orbax is not installed.
    """
    name = "mirrored.checkpoint"
    return load(f"{name}.engine", called=name, extra="checkpoint", package="orbax-checkpoint")
