"""The line of user code that a call came from.

Serves any JAX: plain Python frames; JAX's and this package's own files are passed over.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

import jax

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def user_line() -> str:
    """``file.py:12 in step`` of the innermost caller outside JAX and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((_OURS, _JAX)) and not filename.startswith("<frozen"):
            return f"{os.path.basename(filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "unknown line"
