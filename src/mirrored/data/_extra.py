"""The optional extra "data": Grain and CRC32C, loaded on first use."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from mirrored.errors import MissingExtraError


@functools.cache
def engine() -> ModuleType:
    """`mirrored.data._engine`, which needs Grain.

    Raises:
        MissingExtraError: Grain is not installed.
    """
    return load("mirrored.data._engine", "grain", "mirrored.data.Dataset")


@functools.cache
def crc32c() -> ModuleType:
    """The CRC of TFRecord files.

    Raises:
        MissingExtraError: google-crc32c is not installed.
    """
    return load("google_crc32c", "google-crc32c", "mirrored.data.TFRecordDataset")


def load(module: str, package: str, called: str) -> ModuleType:
    """Imports a module of the extra "data"."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            called,
            found=f"the package {package} cannot be imported: {error}",
            rule='datasets need the extra "data" (iterating over NumPy batches or PyTorch loaders does not)',
            remedy="pip install 'mirrored[data]'",
        ) from error
