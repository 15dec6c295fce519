"""Finds the lines of user code from which a call came.

Supports any JAX version: it reads Python stack frames and skips files of JAX and of this package.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Final

import jax

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_MOST_LINES: Final = 3
_is_users: dict[str, bool] = {}
_described: dict[tuple[tuple[str, int, int], ...], str] = {}


def user_line() -> str:
    """Returns ``file.py:12 in step`` for the innermost caller outside JAX and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((_OURS, _JAX)) and not filename.startswith("<frozen"):
            return _described_line(frame)
        frame = frame.f_back
    return "unknown line"


def user_stacklevel() -> int:
    """Returns the `stacklevel` with which `warnings.warn`, called by the caller, names the innermost user line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_OURS, _JAX)):
            return level
        frame, level = frame.f_back, level + 1
    return level


def user_lines() -> str:
    """Returns ``file.py:12 in step, called at train.py:40 in main``: the innermost lines outside installed packages.

    Jobs of several workers call it at each step, so results are cached (about a microsecond per call).
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[FrameType, tuple[str, int, int]]] = []
    while frame is not None and len(found) < _MOST_LINES:
        code = frame.f_code
        name = code.co_filename
        is_users = _is_users.get(name)
        if is_users is None:
            is_users = _is_users[name] = not name.startswith((_OURS, _JAX, *_INSTALLED, "<frozen"))
        if is_users:
            found.append((frame, (name, code.co_firstlineno, frame.f_lasti)))
        frame = frame.f_back
    if not found:
        return user_line()
    key = tuple([one for _, one in found])
    described = _described.get(key)
    if described is None:
        described = _described[key] = ", called at ".join([_described_line(one) for one, _ in found])
    return described


def _described_line(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
