"""What a piece has found, variant by variant, on disk as soon as it is known."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""``{"variant", "status", "seconds", "figures"}``; with a traceback if it failed, with a reason if it is left out."""
_TRACEBACK_CHARACTERS = 6000
_FOLDER = f"{Path(__file__).parents[2]}/"


class Recorder:
    """Appends one JSON line per variant to a file, so that a piece that is killed keeps what it has found.

    Args:
        path: The file; lines that it already has stay.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def variant(self, name: str) -> Iterator[dict[str, Any]]:
        """Records the figures put into the yielded dict; an exception ends there, recorded with its traceback."""
        figures: dict[str, Any] = {}
        start = time.perf_counter()
        say(f"  {name}")
        try:
            yield figures
        except Exception:
            text = traceback.format_exc()[-_TRACEBACK_CHARACTERS:]
            say(text)
            self._append(name, "failed", time.perf_counter() - start, figures, traceback=text)
        else:
            self._append(name, "ok", time.perf_counter() - start, figures)

    def failed(self, name: str, seconds: float, text: str) -> None:
        """Records a variant that failed elsewhere."""
        self._append(name, "failed", seconds, {}, traceback=text[-_TRACEBACK_CHARACTERS:])

    def passed(self, name: str, seconds: float, **figures: Any) -> None:
        """Records a variant that passed elsewhere."""
        self._append(name, "ok", seconds, figures)

    def left_out(self, name: str, reason: str) -> None:
        """Records a variant that cannot run here."""
        say(f"  {name}: left out: {reason}")
        self._append(name, "left out", 0.0, {}, reason=reason)

    def _append(self, name: str, status: str, seconds: float, figures: dict[str, Any], **more: str) -> None:
        more = {key: text.replace(_FOLDER, "") for key, text in more.items()}  # reports name no path of a machine
        record = {"variant": name, "status": status, "seconds": round(seconds, 3), "figures": figures, **more}
        with open(self._path, "a") as file:
            file.write(json.dumps(record) + "\n")


def read_records(path: Path) -> list[Record]:
    """The records of a file; a last line that was cut off is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
