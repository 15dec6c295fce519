"""Finds the line of user code from which an equation was traced.

Supports JAX 0.10 to 0.12: `jax._src.source_info_util.user_frames`, which skips JAX's own files.
"""

from __future__ import annotations

import os
import sysconfig
from typing import Any, Final

from jax._src import source_info_util as _source_info

_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib"))


def source_line(eqn: Any) -> str | None:
    """Returns ``file.py:12`` for the innermost user frame of `eqn`, or None if it is unknown.

    Files of this package are skipped, and also those of Python and other libraries if there are others.
    """
    traceback = eqn.source_info.traceback
    if traceback is None:
        return None
    frames = [frame for frame in _source_info.user_frames(traceback) if not frame.file_name.startswith(_OURS)]
    own = [frame for frame in frames if not frame.file_name.startswith(_LIBRARIES)]
    for frame in (*own, *frames):
        return f"{os.path.basename(frame.file_name)}:{frame.start_line}"
    return None
