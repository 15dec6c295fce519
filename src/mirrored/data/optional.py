"""`Optional`: an element, or the end of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrored.errors import EndOfDataError

_NOTHING = object()


class Optional:
    """The result of `get_next_as_optional`: an element, or no value after the last element.

    TensorFlow: `tf.experimental.Optional`; here `has_value` returns a bool.
    """

    def __init__(self, value: Any = _NOTHING, end_error: Callable[..., EndOfDataError] = EndOfDataError) -> None:
        self._value, self._end_error = value, end_error

    def has_value(self) -> bool:
        """Returns whether there is an element."""
        return self._value is not _NOTHING

    def get_value(self) -> Any:
        """Returns the element.

        Raises:
            EndOfDataError: There is no element: the data had ended.
        """
        if self._value is _NOTHING:
            raise self._end_error(
                "Optional.get_value",
                found="the optional has no value: the dataset had ended",
                rule="get_value is called only if has_value() is True",
                remedy="check has_value() first",
            )
        return self._value

    def __repr__(self) -> str:
        return f"Optional({self._value!r})" if self.has_value() else "Optional()"
