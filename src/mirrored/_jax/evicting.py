"""Evicts traces of functions from JAX's tracing caches.

If a persistent jitted helper closes over a box (through a mutable object: a model's attribute, a list), its trace
contains that box as a constant. The trace must not be reused after the call. JAX's tracing caches are keyed by the
function and can drop the entries of one function (`evict_weakref`). The Python stack shows which functions are being
traced.

Supports JAX 0.10 to 0.12: the stack frames of `jax._src` that trace hold the function in a local variable such as
`fun`, `f` or `fun_`.
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
    """Returns the functions that JAX is tracing in this thread, innermost first, possibly with helpers of libraries."""
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
    """Evicts every trace of `functions` from this thread's caches."""
    caches = [cache for cache in list(_util._caches) if hasattr(cache, "evict_weakref")]
    for function in functions:
        for cache in caches:
            # A cache keyed by MLIR modules cannot compare them with a function.
            with suppress(TypeError):
                cache.evict_weakref(function)


def forget_tokens(tokens: Set[Hashable]) -> None:
    """Evicts every trace that was made under one of `tokens` (see `jit_key`).

    A JAX cache can evict only all traces of a function, so a function's other traces are traced again when needed.
    """
    for cache in list(_util._caches):
        if hasattr(cache, "evict_weakref"):
            for function in {id(one): one for one in _functions_under(cache.cache_keys(), tokens)}.values():
                cache.evict_weakref(function)


def _functions_under(keys: Iterable[Any], tokens: Set[Hashable]) -> Iterator[Any]:
    """Yields the functions whose cache keys contain a token.

    A key consists of a weak reference to the function, JAX's trace context, and further parts.
    """
    for key in keys:
        reference, context = key[0], key[1]
        if isinstance(reference, weakref.ref) and isinstance(context, tuple):
            if any(type(one) is tuple and len(one) == 2 and one in tokens for one in context):
                function = reference()
                if function is not None:
                    yield function
