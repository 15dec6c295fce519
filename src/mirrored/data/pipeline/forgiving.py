"""The operation `ignore_errors`, which drops the elements whose computation raises an exception."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Final

from mirrored.data.cursors import Cursor, is_raised_again
from mirrored.data.elements import Element
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.pipeline.ignoring_errors import FAULTS
from mirrored.data.pipeline.left_out import LeftOut, left_out_in
from mirrored.data.pipeline.nodes import CursorNode, Run, spec_of_first
from mirrored.data.pipeline.streams import StreamStep

_log: Final = logging.getLogger("mirrored.data")


@dataclasses.dataclass(frozen=True, eq=False)
class Forgiving(StreamStep, CursorNode):
    """The operation `ignore_errors`: drops the elements that raise an exception because of their data."""

    log_warning: bool

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        try:
            return self.parent.spec
        except FAULTS:
            raise
        except Exception:  # of the first element, which is left out, too
            return spec_of_first(self)

    def open_cursor(self, run: Run) -> Cursor:
        parent = self.parent.cursor(dataclasses.replace(run, ignores_errors=True))
        return _IgnoreErrorsCursor(parent, self.log_warning, left_out_in(run))


_CANNOT_GO_ON: Final = (
    "Dataset.ignore_errors: a generator, or a step that keeps elements or a state (scan, unique, group_by_window, "
    "shuffle of a stream), ends at an exception: call ignore_errors before this step"
)


class _IgnoreErrorsCursor:
    """An iterator over another iterator's elements, except those whose computation raises an exception."""

    def __init__(self, parent: Cursor, log_warning: bool, left_out: LeftOut) -> None:
        self._parent, self._log_warning, self._left_out = parent, log_warning, left_out

    def __next__(self) -> Element:
        while True:
            before = self._parent.get_state()
            try:
                return next(self._parent)
            except (StopIteration, *FAULTS):
                raise
            except Exception as error:
                if is_raised_again(error) or self._parent.get_state() == before:  # it would be raised forever
                    error.add_note(_CANNOT_GO_ON)
                    raise
                self._left_out.note(error)
                if self._log_warning:
                    _log.warning("Dataset.ignore_errors: left out an element: %r", error)

    def get_state(self) -> Any:
        return self._parent.get_state()

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state)

    def close(self) -> None:
        self._parent.close()
