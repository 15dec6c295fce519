"""Tells the exceptions that `ignore_errors` has left out before a saved position from those that come only later."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any, Final

from mirrored.data.pipeline.nodes import Run

_MOST: Final = 256  # so that positions stay small
_PLACE: Final = re.compile(r"at element \d+$")
_NEW: Final = (
    "Dataset.ignore_errors left out no such exception when the elements before the position were first read. Without "
    "this element other ones would follow: restore the position again, or restore the checkpoint without the iterator"
)


class LeftOut:
    """The exceptions that `ignore_errors` has left out in one pass over a dataset.

    Steps such as `shuffle` of a stream and `window` read elements before a restored position again, and count them. An
    exception that comes only then, as of a slow disk, would move all later elements, and is raised.

    Args:
        saved: The kinds of these exceptions; None if they are not known. Then all exceptions are left out.
    """

    def __init__(self, saved: list[str] | None) -> None:
        self._kinds = None if saved is None else dict.fromkeys(saved)
        self._thread = threading.local()
        self.error: Exception | None = None
        """The first exception that `note` has raised, which a step between `ignore_errors` and the end can catch."""
        self.is_used = False
        """Whether a step of the pipeline may leave out exceptions."""

    @classmethod
    def of(cls, position: dict[str, Any]) -> LeftOut:
        """Returns the exceptions before a saved position; those of earlier versions do not contain them."""
        return cls(position.get("left_out", None if position.get("count") else []))

    def get_state(self) -> dict[str, Any]:
        """Returns the entry of a saved position: None if the exceptions are unknown; no entry if no step omits any."""
        if not self.is_used:
            return {}
        # Also if no element was read: the end of a pass can follow exceptions alone.
        return {"left_out": None if self._kinds is None else list(self._kinds)}

    @contextlib.contextmanager
    def rereading(self, rereads: bool = True) -> Iterator[None]:
        """Returns a context in which this thread reads elements before a restored position again."""
        before = getattr(self._thread, "rereads", False)
        self._thread.rereads = before or rereads
        try:
            yield
        finally:
            self._thread.rereads = before

    def forget(self) -> None:
        """Leaves out all exceptions from now on: a cache has elements of a pass whose exceptions are not known."""
        self.is_used, self._kinds = True, None

    def note(self, error: Exception) -> None:
        """Records an exception that is about to be left out; raises it if it is new, and its element is read again."""
        if self._kinds is None:
            return
        # Not the message, which can contain an address in memory.
        places = [place for note in getattr(error, "__notes__", ()) for place in _PLACE.findall(note)]
        kind = ", ".join([type(error).__name__, *places])
        if getattr(self._thread, "rereads", False) and kind not in self._kinds:
            error.add_note(_NEW)
            self.error = self.error or error
            raise error
        self._kinds[kind] = None
        if len(self._kinds) > _MOST:
            self._kinds = None


def left_out_in(run: Run) -> LeftOut:
    """Returns the exceptions that are left out in a pass."""
    if run.inner is None:  # such as: a pass that infers a spec
        return LeftOut(None)
    run.inner.left_out.is_used = True
    return run.inner.left_out
