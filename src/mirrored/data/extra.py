"""Imports the optional dependencies of `mirrored.data` (Grain, google-crc32c) when they are first used."""

from __future__ import annotations

import functools
from typing import Any

from mirrored.extras import load


@functools.cache
def engine() -> Any:
    """Imports and returns the module `mirrored.data.engine`; raises an error if Grain is not installed.

    Raises:
        MissingExtraError: Grain is not installed.
    """
    return _load("mirrored.data.engine", "grain", "mirrored.data.Dataset")


@functools.cache
def crc32c() -> Any:
    """Imports and returns the package `google_crc32c`, which computes the checksums of TFRecord files.

    Raises:
        MissingExtraError: google-crc32c is not installed.
    """
    return _load("google_crc32c", "google-crc32c", "mirrored.data.TFRecordDataset")


def _load(module: str, package: str, called: str) -> Any:
    otherwise = "distribute NumPy batches or a PyTorch DataLoader, which do not need this extra"
    return load(module, called=called, extra="data", package=package, otherwise=otherwise)
