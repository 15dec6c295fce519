"""Values that stay on the host: strings, and arrays read from files, with a tensor's `numpy()` method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mirrored.tf import _dtypes

Texts: TypeAlias = str | bytes | Sequence[str | bytes] | np.ndarray[Any, Any]
"""One or more strings."""


class HostArray(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with a tensor's `numpy()` method, for 64-bit integers and strings, which stay on the host.

    TensorFlow: A tensor. Operations of `mirrored.tf` accept it; for strings, use the operations of Python and NumPy.
    """

    def numpy(self) -> Any:
        """Returns the plain NumPy array; a scalar for a single value."""
        return np.asarray(self)[()]


class HostText(bytes):
    """The bytes of one string, with a tensor's `numpy()` method.

    TensorFlow: A scalar of `tf.string`.
    """

    __slots__ = ()

    shape = ()
    dtype = _dtypes.string

    def numpy(self) -> bytes:
        """Returns the bytes."""
        return bytes(self)


def on_host(value: object) -> Any:
    """Wraps bytes and NumPy arrays so that they have a `numpy()` method; returns anything else unchanged."""
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
