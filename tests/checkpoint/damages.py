"""Ways to damage a checkpoint, for the tests of restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HOW: Final = ("truncated", "flipped", "missing", "no manifest", "empty manifest")


def damage(path: Path, how: str) -> None:
    """Damages or removes the largest file of a checkpoint."""
    largest = max((one for one in path.rglob("*") if one.is_file()), key=lambda one: one.stat().st_size)
    target = path / "mirrored.json" if how == "no manifest" else largest
    data = bytearray(target.read_bytes())
    if how == "truncated":
        target.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        data[len(data) // 2] ^= 1
        target.write_bytes(data)
    elif how == "empty manifest":
        (path / "mirrored.json").write_text("")
    else:
        target.unlink()
