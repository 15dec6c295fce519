"""The placeholder for read positions of files that cannot be read again, such as pipes."""

from __future__ import annotations

import dataclasses
import errno
import os
from typing import Any


@dataclasses.dataclass(frozen=True)
class NoPosition:
    """A placeholder in read positions for a file that cannot be read again, such as a pipe.

    Steps compare positions, and keep them until one is saved: an error is raised only for one that leaves the pipeline.

    Attributes:
        path: The file.
        records: The number of records that were read.
    """

    path: str
    records: int


def checked(position: Any) -> Any:
    """Returns a read position unchanged; raises OSError if the position contains a `NoPosition`.

    Raises:
        OSError: A part of the position is a `NoPosition`.
    """
    parts = [position]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif isinstance(part, NoPosition):
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), part.path)
    return position
