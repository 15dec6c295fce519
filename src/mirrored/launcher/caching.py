"""The persistent compilation cache of `mirrored run`: its location and its size limit."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DIRECTORY_VARIABLE: Final = "JAX_COMPILATION_CACHE_DIR"
_LIMIT_BYTES: Final = 4 * 2**30


def cache_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that turn on JAX's persistent compilation cache, without those already set.

    The zero compile time and the entry size of -1 make JAX cache every program, also small and quickly compiled ones.
    """
    chosen = {
        DIRECTORY_VARIABLE: str(default_directory(environment)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return {name: value for name, value in chosen.items() if name not in environment}


def default_directory(environment: Mapping[str, str]) -> Path:
    """Returns the cache folder of this user and CPU type: a program compiled for another CPU may not run here."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(base) / "mirrored" / "compiled" / _processor()


def _processor() -> str:
    """Returns the architecture and a hash of the CPU's feature flags."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def tidy(directory: Path, limit_bytes: int = _LIMIT_BYTES) -> int:
    """Deletes the least recently used programs until the folder is within the limit.

    Returns:
        The number of bytes deleted.
    """
    files = [(one.stat(), one) for one in directory.glob("*") if one.is_file()] if directory.is_dir() else []
    total = excess = sum(stat.st_size for stat, _ in files)
    for stat, path in sorted(files, key=lambda item: max(item[0].st_atime, item[0].st_mtime)):
        if excess <= limit_bytes:
            break
        with contextlib.suppress(OSError):  # another job may delete the same file
            path.unlink()
            excess -= stat.st_size
    return total - excess
