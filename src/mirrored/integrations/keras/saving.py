"""`Model.save` and `save_weights` of models of a strategy write atomically.

Keras writes to the path itself. If the program is killed meanwhile, an incomplete file replaces the previous one. If
several workers save to one path, as callbacks of `fit` do, one of them fails on the lock that HDF5 takes. The wrappers
therefore write to a temporary name in the same folder and rename it. All workers write the same content, so their order
does not matter. The wrappers do not communicate, because a program may save on one worker only.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.patches import replace

keras = load()
_ONE_FILE: Final = (".weights.h5", ".h5", ".keras")


def connect_saving() -> None:
    """Wraps both methods."""
    replace("keras", keras.Model, "save", _whole(keras.Model.save))
    replace("keras", keras.Model, "save_weights", _whole(keras.Model.save_weights))


def _whole(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def whole(self: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        path = _replaceable(filepath, overwrite)
        # Options may make folders or several files of it (zipped=False, max_shard_size).
        if path is None or args or kwargs or strategy_of(self) is None:
            return save(self, filepath, overwrite, *args, **kwargs)
        beside = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
        try:
            result = save(self, str(beside), True)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        return result

    return whole


def _replaceable(filepath: Any, overwrite: bool) -> Path | None:
    """Returns the path if a local file can be placed there. Keras handles all other paths, questions and errors."""
    if not isinstance(filepath, (str, os.PathLike)) or "://" in os.fspath(filepath):
        return None
    path = Path(filepath)
    is_free = not path.exists() or (overwrite and path.is_file())
    return path if path.name.endswith(_ONE_FILE) and path.parent.is_dir() and is_free else None
