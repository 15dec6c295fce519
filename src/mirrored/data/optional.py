"""An element that may not be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrored.errors import EndOfDataError

_NOTHING = object()


class Optional:
    """What `get_next_as_optional` gives.

    TensorFlow: `tf.experimental.Optional`; `has_value` is a bool.
    """

    def __init__(self, value: Any = _NOTHING, end_error: Callable[..., EndOfDataError] = EndOfDataError) -> None:
        self._value, self._end_error = value, end_error

    def has_value(self) -> bool:
        """Whether there was another element."""
        return self._value is not _NOTHING

    def get_value(self) -> Any:
        """The element.

        Raises:
            EndOfDataError: The data has ended.
        """
        if self._value is _NOTHING:
            raise self._end_error(
                "Optional.get_value",
                found="it has no value: the dataset had ended",
                rule="only an optional with has_value() gives one",
                remedy="ask has_value() first",
            )
        return self._value

    def __repr__(self) -> str:
        return f"Optional({self._value!r})" if self.has_value() else "Optional()"
