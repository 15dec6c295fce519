"""NumPy arrays and strings in host memory that have the `numpy()` method of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mirrored.tf import _dtypes

Texts: TypeAlias = str | bytes | Sequence[str | bytes] | np.ndarray[Any, Any]
"""One or more strings."""


class HostArray(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with a `numpy()` method, for strings and 64-bit integers, which are not moved to devices.

    TensorFlow: A tensor. Operations of `mirrored.tf` accept it; for strings, use the operations of Python and NumPy.
    """

    def numpy(self) -> Any:
        """Returns the data as a plain NumPy array; a scalar for a single value."""
        return np.asarray(self)[()]


class HostText(bytes):
    """A bytes object with the `numpy()` method of a tensor, for one string.

    TensorFlow: A scalar of `tf.string`.
    """

    __slots__ = ()

    shape = ()
    dtype = _dtypes.string

    def numpy(self) -> bytes:
        """Returns the string as a plain bytes object."""
        return bytes(self)


def on_host(value: object) -> Any:
    """Gives bytes and NumPy arrays the `numpy()` method of a tensor; returns anything else unchanged."""
    if isinstance(value, bytes):
        return HostText(value)
    if isinstance(value, np.generic):
        return np.asarray(value).view(HostArray)
    return value.view(HostArray) if isinstance(value, np.ndarray) else value


def as_bytes_array(value: Texts) -> np.ndarray[Any, Any]:
    """Converts one or more strings to a NumPy object array of bytes."""
    if isinstance(value, str | bytes):
        array = np.empty((), object)
        array[()] = value.encode() if isinstance(value, str) else bytes(value)
        return array
    given = np.asarray(value, object)
    made = np.empty(given.shape, object)
    for place, text in np.ndenumerate(given):
        if not isinstance(text, str | bytes):
            raise TypeError(f"Expected strings or bytes, got {type(text).__name__}: {text!r}")
        made[place] = text.encode() if isinstance(text, str) else bytes(text)
    return made
