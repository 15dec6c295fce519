"""The optional extra "checkpoint": Orbax, loaded on first use."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from mirrored.errors import MissingExtraError


@functools.cache
def engine() -> ModuleType:
    """`mirrored.checkpoint._engine`, which needs Orbax.

    Raises:
        MissingExtraError: Orbax is not installed.
    """
    try:
        return importlib.import_module("mirrored.checkpoint._engine")
    except ImportError as error:
        raise MissingExtraError(
            "mirrored.checkpoint",
            found=f"the package orbax-checkpoint cannot be imported: {error}",
            rule='checkpoints need the extra "checkpoint"',
            remedy="pip install 'mirrored[checkpoint]'",
        ) from error
