"""Making JAX forget how it traced a function.

A persistent jitted helper that closed over a box (through a mutable object: a model's attribute, a list) was traced
with that box as a constant. Once the call is over the trace must not be reused. JAX's tracing caches are keyed by the
function and can drop one function's entries (`evict_weakref`); which functions are being traced is read off the Python
stack.

Serves JAX 0.10 to 0.12: the frames of `jax._src` that trace hold the function in a local variable `fun`, `f` or `fun_`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable, Iterable, Iterator, Set
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


def forget_tokens(tokens: Set[Hashable]) -> None:
    """Drops every trace that was made under one of `tokens` (see `jit_key`).

    A cache of JAX drops all traces of a function or none, so a function's other traces are made again where needed.
    """
    for cache in list(_util._caches):
        if hasattr(cache, "evict_weakref"):
            for function in {id(one): one for one in _functions_under(cache.cache_keys(), tokens)}.values():
                cache.evict_weakref(function)


def _functions_under(keys: Iterable[Any], tokens: Set[Hashable]) -> Iterator[Any]:
    """The functions whose keys contain a token. A key is a weak reference, JAX's trace context, and the rest."""
    for key in keys:
        reference, context = key[0], key[1]
        if isinstance(reference, weakref.ref) and isinstance(context, tuple):
            if any(type(one) is tuple and len(one) == 2 and one in tokens for one in context):
                function = reference()
                if function is not None:
                    yield function
