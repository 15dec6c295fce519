"""Making JAX forget how it traced a function.

A persistent jitted helper that closed over a box (through a mutable object: a model's attribute, a list) was traced
with that box as a constant. Once the call is over the trace must not be reused. JAX's tracing caches are keyed by the
function and can drop one function's entries (`evict_weakref`); which functions are being traced is read off the Python
stack.

Serves JAX 0.10 to 0.12: the frames of `jax._src` that trace hold the function in a local variable `fun`, `f` or `fun_`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

from jax._src import core as _core
from jax._src import util as _util

_NAMES = ("fun", "f", "fun_", "f_", "body_fun", "cond_fun", "branches", "true_fun", "false_fun")


def functions_being_traced() -> list[Any]:
    """The functions that JAX is tracing in this thread, innermost first; a library's own helpers may be among them."""
    found: dict[int, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("jax._src"):
            _collect(frame, found)
        frame = frame.f_back
    return list(found.values())


def _collect(frame: FrameType, found: dict[int, Any]) -> None:
    local = frame.f_locals
    for name in _NAMES:
        value = local.get(name)
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if callable(one) and not isinstance(one, (type, _core.Tracer)):
                found[id(one)] = one


def forget_traces(functions: Iterable[Any]) -> None:
    """Drops every trace of `functions` from this thread's caches."""
    caches = [cache for cache in list(_util._caches) if hasattr(cache, "evict_weakref")]
    for function in functions:
        for cache in caches:
            # A cache keyed by MLIR modules cannot compare them with a function.
            with suppress(TypeError):
                cache.evict_weakref(function)
