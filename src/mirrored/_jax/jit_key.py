"""A token in JAX's tracing caches, so that a jitted helper traced in one context is not reused in another.

JAX traces a persistent `@jax.jit` helper once per argument shapes and keeps the jaxpr, with whatever tracers the helper
closed
over: under another tape or another trace those would be stale. Every JAX cache that matters has the *user context* in
its key (`jax.make_user_context`); this module owns one such context.

- An eager tape uses the fixed token `TAPE`. Inside a tape a variable read is hoisted as a reference that is resolved at
  each call, and a helper that captured a box is evicted (`mirrored._jax.evicting`), so one token serves all tapes and
  nothing is traced again for the next one.
- The trace of a compiled function closes over values that live for that trace only: it takes `fresh()`, a token of its
  own, and calls `renew()` whenever a captured variable gets another value.

Serves JAX 0.10 to 0.12 (`UserConfig._obj` is the `Config` behind a user context, for setting it without a `with`
block).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import jax

TAPE = "mirrored.tape"

_context = jax.make_user_context(None)
_holder = _context._obj
_serial = itertools.count(1)


def current() -> Hashable:
    """The token in force in this thread, None by default."""
    token: Hashable = _holder.value
    return token


def swap(token: Hashable) -> Hashable:
    """Puts `token` in force in this thread; returns what was."""
    previous: Hashable = _holder.value
    _holder.set_local(token)
    return previous


put: Callable[[Hashable], None] = _holder.set_local


@contextmanager
def using(token: Hashable) -> Iterator[None]:
    """Puts `token` in force for the block."""
    previous = swap(token)
    try:
        yield
    finally:
        put(previous)


@contextmanager
def fresh() -> Iterator[None]:
    """Puts a token of its own in force for the block: no trace is taken over from elsewhere or left to others."""
    with using(("mirrored.trace", next(_serial))):
        yield


def renew() -> None:
    """Replaces the token in force by another one of its own, if it came from `fresh()`.

    Call it when a value that helpers may have captured has changed within the block.
    """
    if isinstance(current(), tuple):
        put(("mirrored.trace", next(_serial)))
