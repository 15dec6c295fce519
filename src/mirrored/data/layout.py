"""Records the structure of the latest batch, so that workers without data can create empty batches."""

from __future__ import annotations

from typing import Any

from mirrored.data.elements import Element
from mirrored.data.specs import empty_batch, from_json, spec_of, to_json


class Layout:
    """A record of the structure, shapes and dtypes of the latest batch, from which an empty batch can be created.

    A worker that is restored from a position at the end of its own data reads no batch that could show what its empty
    batches look like. The saved position therefore contains the layout.
    """

    def __init__(self) -> None:
        self._is_kept = False
        self._spec: Any = None

    def keep(self) -> None:
        """Turns on recording of the batches' structure; must be called before the first batch is read."""
        self._is_kept = True

    def note(self, read: Element | list[Element]) -> None:
        """Records the structure, shapes and dtypes of a batch.

        Does nothing unless `keep` was called.
        """
        if self._is_kept:
            self._spec = spec_of(read)

    def empty(self) -> Any:
        """Returns a batch with 0 examples of the recorded structure; None if no structure was recorded."""
        return None if self._spec is None else empty_batch(self._spec)

    def get_state(self) -> dict[str, Any]:
        """Returns the recorded batch structure as part of a reader's saved state."""
        try:
            return {} if self._spec is None else {"layout": to_json(self._spec)}
        except TypeError:  # without it, the restored reader asks its source
            return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the recorded batch structure from a reader's saved state."""
        self._spec = from_json(state["layout"]) if "layout" in state else None
