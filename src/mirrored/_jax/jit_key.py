"""Tokens in the keys of JAX's tracing caches: a jitted helper that was traced in one context is not reused in another.

JAX traces a persistent `@jax.jit` helper once per argument shapes and keeps the jaxpr, including the tracers over which
the helper closed. Under another tape or trace, those would be stale. The keys of all relevant JAX caches contain the
*user contexts* (`jax.make_user_context`). This module owns two of them. The first distinguishes tapes and traces:

- An eager tape uses the fixed token `TAPE`. Inside a tape, a variable read is hoisted as a reference that is resolved
  at each call, and a helper that captured a box is evicted (`mirrored._jax.evicting`). So one token serves all tapes,
  and the next tape traces nothing again.
- The trace of a compiled function closes over values that live only for that trace. It uses a new token (`fresh`), and
  takes another one (`renew`) whenever a captured variable is assigned. The value of a variable read also belongs to the
  current tapes and replica. Once a helper has read a variable (`note_read`), each change of tape or replica (`moved`)
  takes a new token. Until then, all tapes and replicas of the trace share one token, because most helpers read no
  variable.

The second distinguishes replicas. The trace of a helper that reads `replica_id_in_sync_group` or `num_replicas_in_sync`
contains the value as a constant. From the first such read on, each replica has its own traces. Until then, all replicas
share traces, which are separate from those outside `run`.

Supports JAX 0.10 to 0.12 (`UserConfig._obj` is the `Config` behind a user context, for setting it without a `with`
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
    """Returns the current token of this thread, None by default."""
    token: Hashable = _holder.value
    return token


def swap(token: Hashable) -> Hashable:
    """Makes `token` current in this thread and returns the previous one."""
    previous: Hashable = _holder.value
    _holder.set_local(token)
    return previous


put: Callable[[Hashable], None] = _holder.set_local


@contextmanager
def using(token: Hashable) -> Iterator[None]:
    """Makes `token` current for the block."""
    previous = swap(token)
    try:
        yield
    finally:
        put(previous)


class _Sharing:
    """The tokens of one trace of a compiled function.

    Attributes:
        apart: Whether each tape and replica has its own token, and hence its own traces of helpers.
        tokens: All tokens of the trace. No other trace uses them.
    """

    def __init__(self) -> None:
        self.apart = False
        self.tokens: set[Hashable] = set()

    def new_token(self) -> Hashable:
        """Returns a token that no trace has used."""
        token = (_TRACE, next(_serial))
        self.tokens.add(token)
        return token


# Replica threads inherit the value, because `LockStep` starts them in a copy of the context.
_sharing: ContextVar[_Sharing | None] = ContextVar("mirrored.sharing", default=None)


@contextmanager
def fresh() -> Iterator[None]:
    """Makes a new token current for the block: no helper trace is reused from outside or left for others."""
    sharing = _Sharing()
    outer = _sharing.set(sharing)
    try:
        with using(sharing.new_token()):
            yield
    finally:
        _sharing.reset(outer)
        # Otherwise JAX's caches would keep the helpers' jaxprs under tokens that are never looked up again: 0.75 MB per
        # model.
        evicting.forget_tokens(sharing.tokens)


def renew() -> None:
    """Replaces the current token by a new one, if it came from `fresh()`.

    Call it when a value that helpers may have captured changes within the block.
    """
    if isinstance(current(), tuple):
        sharing = _sharing.get()
        put((_TRACE, next(_serial)) if sharing is None else sharing.new_token())


def note_read() -> None:
    """Records that a helper that is being traced has read a variable: only the current tapes and replica may reuse it.

    JAX caches the trace in progress under the token from its start. No thread uses that token again: each takes a new
    one when it opens or closes a tape, or when its replica continues.
    """
    sharing = _sharing.get()
    if sharing is not None and not sharing.apart:
        sharing.apart = True
        renew()


def moved() -> None:
    """Records a change of tape or replica, after which helpers that have read variables are traced again."""
    sharing = _sharing.get()
    if sharing is not None and sharing.apart:
        renew()


def leave_tape(outer: Hashable) -> None:
    """Makes the token current that follows a tape's block.

    Args:
        outer: The token before the block. The token of a compiled function's trace is not restored, because the block
            may have renewed it.
    """
    if isinstance(outer, tuple) and isinstance(current(), tuple):
        moved()
    else:
        put(outer)


class _Replicas:
    """Whether each replica has its own traces of helpers."""

    apart = False


@contextmanager
def for_replica(own: Hashable) -> Iterator[None]:
    """Separates a replica's helper traces from those outside `run`, and from other replicas' if a helper reads its id.

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
    """Makes the replica's token current again after other replicas have run. They may have separated the traces."""
    _replica_holder.set_local(own if _Replicas.apart else RUN)
    moved()


def tell_replicas_apart(own: Hashable) -> None:
    """Gives each replica its own helper traces from now on: the trace in progress contains the replica as a constant.

    By default all replicas share one trace, because each trace of a helper is compiled. JAX caches the trace in
    progress under the shared token, which is never used again.
    """
    _Replicas.apart = True
    resume_replica(own)
