"""A token in JAX's tracing caches, so that a jitted helper traced in one context is not reused in another.

JAX traces a persistent `@jax.jit` helper once per argument shapes and keeps the jaxpr, with whatever tracers the helper
closed over: under another tape or another trace those would be stale. Every JAX cache that matters has the *user
context* in its key (`jax.make_user_context`); this module owns two such contexts. The first tells tapes and traces
apart:

- An eager tape uses the fixed token `TAPE`. Inside a tape a variable read is hoisted as a reference that is resolved at
  each call, and a helper that captured a box is evicted (`mirrored._jax.evicting`), so one token serves all tapes and
  nothing is traced again for the next one.
- The trace of a compiled function closes over values that live for that trace only: it takes `fresh()`, a token of its
  own, and calls `renew()` whenever a captured variable gets another value. What a read of a variable gives belongs to
  the tapes and the replica that were current: once a helper has read one (`note_read`), whatever changes them (`moved`)
  takes a new token. Before, all tapes and replicas of the trace share its token: most helpers read no variable.

The second tells replicas apart. A helper that asks for `replica_id_in_sync_group` or `num_replicas_in_sync` is traced
with the answer as a constant. From the first such question on, each replica has traces of its own; before, all replicas
share theirs, apart from code outside `run`.

Serves JAX 0.10 to 0.12 (`UserConfig._obj` is the `Config` behind a user context, for setting it without a `with`
block).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from mirrored._jax import evicting

TAPE = "mirrored.tape"
RUN = "mirrored.run"
_TRACE = "mirrored.trace"

_context = jax.make_user_context(None)
_holder = _context._obj
_serial = itertools.count(1)
_replica_context = jax.make_user_context(None)
_replica_holder = _replica_context._obj


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


class _Sharing:
    """What one trace of a compiled function knows of its tokens.

    Attributes:
        apart: Whether tapes and replicas use traces of their own of every helper.
        tokens: All tokens of the trace. No other trace uses them.
    """

    def __init__(self) -> None:
        self.apart = False
        self.tokens: set[Hashable] = set()

    def new_token(self) -> Hashable:
        """A token that no trace has used."""
        token = (_TRACE, next(_serial))
        self.tokens.add(token)
        return token


# Replica threads inherit it: `LockStep` starts them in a copy of the context.
_sharing: ContextVar[_Sharing | None] = ContextVar("mirrored.sharing", default=None)


@contextmanager
def fresh() -> Iterator[None]:
    """Puts a token of its own in force for the block: no trace is taken over from elsewhere or left to others."""
    sharing = _Sharing()
    outer = _sharing.set(sharing)
    try:
        with using(sharing.new_token()):
            yield
    finally:
        _sharing.reset(outer)
        # JAX's caches would keep the helpers' jaxprs under tokens that are never looked up again: 0.75 MB per model.
        evicting.forget_tokens(sharing.tokens)


def renew() -> None:
    """Replaces the token in force by another one of its own, if it came from `fresh()`.

    Call it when a value that helpers may have captured has changed within the block.
    """
    if isinstance(current(), tuple):
        sharing = _sharing.get()
        put((_TRACE, next(_serial)) if sharing is None else sharing.new_token())


def note_read() -> None:
    """A helper that is being traced has read a variable: only the tapes and the replica of the moment may reuse it.

    The trace under way is kept under the token in force so far, which no thread uses again: each takes a new one when
    it opens or closes a tape, or when its replica goes on.
    """
    sharing = _sharing.get()
    if sharing is not None and not sharing.apart:
        sharing.apart = True
        renew()


def moved() -> None:
    """Other tapes or another replica are current from here on: helpers that have read variables are traced again."""
    sharing = _sharing.get()
    if sharing is not None and sharing.apart:
        renew()


def leave_tape(outer: Hashable) -> None:
    """Puts the token in force that follows a tape's block.

    Args:
        outer: The token before the block. That of a compiled function's trace is not put back: the block may have
            renewed it.
    """
    if isinstance(outer, tuple) and isinstance(current(), tuple):
        moved()
    else:
        put(outer)


class _Replicas:
    """Whether each replica uses traces of its own."""

    apart = False


@contextmanager
def for_replica(own: Hashable) -> Iterator[None]:
    """Runs a replica: apart from code outside `run`, and, where some helper knows its replica, from other replicas.

    Args:
        own: The replica's token.
    """
    previous: Hashable = _replica_holder.value
    resume_replica(own)
    try:
        yield
    finally:
        _replica_holder.set_local(previous)


def resume_replica(own: Hashable) -> None:
    """Puts the replica's token in force, after other replicas have run; they may have asked to be told apart."""
    _replica_holder.set_local(own if _Replicas.apart else RUN)
    moved()


def tell_replicas_apart(own: Hashable) -> None:
    """Gives each replica traces of its own from now on: the trace under way has the replica in it as a constant.

    One trace for all replicas is the rule, since a helper is compiled for each trace. The trace under way is kept under
    the shared token, which is never used again.
    """
    _Replicas.apart = True
    resume_replica(own)
