"""The log of an elastic job's events, for tools and figures: one JSON object per line in `elastic.jsonl`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

FILE: Final = "elastic.jsonl"


class EventLog:
    """Appends the events of an elastic job to a file; does nothing if no folder is given.

    `docs/design/elastic.md` describes the events. A log that cannot be written does not end the job.

    Args:
        directory: The folder of the file; None for no log.
        report: Called once with the reason if the file cannot be written.
        clock: Returns the time in seconds since 1970, which the workers share.
    """

    def __init__(
        self, directory: Path | None, report: Callable[[str], object], clock: Callable[[], float] = time.time
    ) -> None:
        self._report, self._clock = report, clock
        self._file: IO[str] | None = None
        if directory is not None:
            self._attempt(lambda: self._open(directory))

    def _open(self, directory: Path) -> None:
        self._file = open(directory / FILE, "a", encoding="utf-8", buffering=1)

    def write(self, event: str, **more: Any) -> None:
        """Appends an event with the current time.

        Args:
            event: The kind of the event.
            more: Its other members, which JSON can represent.
        """
        file = self._file
        if file is not None:
            line = json.dumps({"at": round(self._clock(), 4), "event": event, **more})
            self._attempt(lambda: file.write(line + "\n"))

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._attempt(self._file.close)
        self._file = None

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self._file = None
            self._report(f"the log of elastic events cannot be written any more ({error.strerror})")
