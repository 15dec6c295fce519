"""Finds the source lines of user code for a call or an equation, and hides internal frames in tracebacks."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import jax

from mirrored._jax.private import source_info_util as _source_info
from mirrored._jax.private import traceback_util as _traceback_util

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn

# Finds the lines of user code from which a call came.
#
# Supports any JAX version: it reads Python stack frames and skips files of JAX and of this package.

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_SITE_PACKAGES: Final = f"{os.sep}site-packages{os.sep}"  # of an environment that a .pth file adds
_MOST_LINES: Final = 3
_is_users: dict[str, bool] = {}
_described: dict[tuple[tuple[str, int, int], ...], str] = {}


def user_line() -> str:
    """Returns the innermost source line of user code, as in ``file.py:12 in step``.

    Lines of installed packages (Keras, for instance) count only if there is no other line outside JAX and this package.
    """
    frame: FrameType | None = sys._getframe(1)
    installed: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_of_user(name):
            return _described_line(frame)
        if installed is None and not name.startswith((_OURS, _JAX, "<frozen")):
            installed = frame
        frame = frame.f_back
    return "unknown line" if installed is None else _described_line(installed)


def _is_of_user(name: str) -> bool:
    is_users = _is_users.get(name)
    if is_users is None:
        elsewhere = name.startswith((_OURS, _JAX, *_INSTALLED, "<frozen")) or _SITE_PACKAGES in name
        is_users = _is_users[name] = not elsewhere
    return is_users


def is_of_users(error: BaseException) -> bool:
    """Returns whether an exception was raised by user code or another library, not by JAX or this package."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is None or not at.tb_frame.f_code.co_filename.startswith((_OURS, _JAX))


def scopes_of(eqn: JaxprEqn) -> tuple[str, ...]:
    """Returns the names of the `jax.named_scope` blocks in which an equation was traced, outermost first."""
    # Transformations, such as `jvp`, are in the stack as well.
    return tuple(str(one.name) for one in eqn.source_info.name_stack.stack)


def user_stacklevel() -> int:
    """Returns the `stacklevel` with which `warnings.warn` points to the innermost line of user code."""
    frame: FrameType | None = sys._getframe(1)
    level, installed = 1, 0
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_of_user(name):
            return level
        if not installed and not name.startswith((_OURS, _JAX)):
            installed = level
        frame, level = frame.f_back, level + 1
    return installed or level


def user_lines() -> str:
    """Returns the innermost source lines of user code, as in ``file.py:12 in step, called at train.py:40 in main``.

    Jobs of several workers call it at each step, so results are cached (about a microsecond per call).
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[FrameType, tuple[str, int, int]]] = []
    while frame is not None and len(found) < _MOST_LINES:
        code = frame.f_code
        if _is_of_user(code.co_filename):
            found.append((frame, (code.co_filename, code.co_firstlineno, frame.f_lasti)))
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


# Finds the line of user code from which an equation was traced.
#
# Supports JAX 0.10 to 0.12: `jax._src.source_info_util.user_frames`, which skips JAX's own files.

_LIBRARIES: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib"))


def source_line(eqn: JaxprEqn) -> str | None:
    """Returns the user's source line of a jaxpr equation, such as ``file.py:12``; None if unknown.

    Files of this package are skipped, and also those of Python and other libraries if there are others.
    """
    traceback: Any = eqn.source_info.traceback  # which jaxlib's stubs do not know
    if traceback is None:
        return None
    frames = [frame for frame in _source_info.user_frames(traceback) if not frame.file_name.startswith(_OURS)]
    own = [frame for frame in frames if not frame.file_name.startswith(_LIBRARIES)]
    for frame in (*own, *frames):
        return f"{os.path.basename(frame.file_name)}:{frame.start_line}"
    return None


# Filters the errors that reach the user: removes internal stack frames, and finds those that stand for Ctrl-C.
#
# JAX's own traceback filter removes this package's frames along with those of JAX. The setting
# `jax_traceback_filtering` (JAX_TRACEBACK_FILTERING) controls it: ``off`` shows all frames.
#
# Supports JAX 0.10 to 0.12: `jax._src.traceback_util.api_boundary` and `register_exclusion`.

F = TypeVar("F", bound=Callable[..., Any])

_traceback_util.register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# jaxlib compares the keys of its caches in C++ and converts any exception of `__eq__`, including Ctrl-C, to a
# ValueError that has the traceback as its text or the exception as its cause.
_COMPARING = re.compile(r"comparable using __eq__|checking equality of metadata fields")
_INTERRUPTED = re.compile(r"^KeyboardInterrupt\b", re.MULTILINE)


def is_interrupt(error: BaseException) -> bool:
    """Returns whether an error is a ValueError or SystemError by which C code reports a KeyboardInterrupt (Ctrl-C).

    It is a ValueError of JAX's caches, or the SystemError of a function in C that returns although Ctrl-C was raised.
    Between a SystemError and its cause JAX may insert an exception that shows where a traced operation comes from.
    """
    cause: BaseException | None = error
    if isinstance(error, SystemError):
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__
        return cause is not None
    if not isinstance(error, ValueError) or not _COMPARING.search(str(error)):
        return False
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt) or _INTERRUPTED.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def hides_frames(function: F) -> F:
    """Wraps a public function so that the tracebacks of its exceptions hide internal frames."""
    wrapped: F = _traceback_util.api_boundary(function)
    return wrapped
