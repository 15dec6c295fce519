"""Checkpoints as earlier versions of mirrored have written them, which do not state their level of state."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint.json_state import to_json

_LEVELS = ("level", "carried_level")


def as_by_earlier_version(path: str | os.PathLike[str]) -> str:
    """Removes the levels from the manifest of a checkpoint, and returns the path."""
    manifest = Path(path) / "mirrored.json"
    head = json.loads(manifest.read_text())
    for name in _LEVELS:
        del head["contents"][name]
    head["checksum"] = f"{zlib.crc32(to_json(head['contents']).encode()):08x}"
    manifest.write_text(json.dumps(head))
    return os.fspath(path)


def save_as_by_earlier_version(checkpoint: Checkpoint, folder: Path) -> None:
    """Saves a checkpoint with a manager, as its step 1."""
    manager = CheckpointManager(checkpoint, folder)
    path = manager.save(1)
    manager.wait()
    as_by_earlier_version(path)
