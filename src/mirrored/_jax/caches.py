"""Adds tokens to the keys of JAX's tracing caches, to prevent the reuse of stale traces, and evicts traces."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from contextlib import suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, ClassVar, TypeVar

import jax

from mirrored._blocks import contextmanager
from mirrored._jax.private import core as _core
from mirrored._jax.private import partial_eval as _partial_eval
from mirrored._jax.private import util as _util

# Tokens in the keys of JAX's tracing caches, which prevent JAX from reusing the trace of a jitted helper under another
# tape, trace or replica.
#
# JAX traces a *helper*, a function that the user decorates with `@jax.jit` and calls in many steps, once per
# combination of argument shapes and dtypes. It caches the jaxpr, including the tracers that the helper closed over.
# Under another tape or trace these tracers would be stale. The remedy: the keys of all relevant JAX caches contain the
# values of the *user contexts* (`jax.make_user_context`), so a trace that was cached under one value is not found under
# another. This module owns two user contexts, and calls their values *tokens*. The first distinguishes tapes and
# traces:
#
# - Eager tapes. All eager tapes of a thread use one token (`tape_token`): the outermost tape sets it, nested tapes keep
#   it. It differs from the token outside of tapes (None), because a helper may close over an attribute that holds a
#   box only inside: in its place a trace from outside has a constant, through which no gradient flows. The replica
#   threads of an eager run use the token of the thread that called `run`. One token is enough, because
#   cached traces contain nothing that belongs to one tape: a variable that a helper reads becomes a `ReadTracer`
#   (`_jax.boxes`), which is resolved at each call of the helper; and if a helper closes over a box (an array that the
#   tape tracks), its traces are evicted (`forget_traces`, below). JAX cannot evict them while it traces, so they are
#   evicted before the tape's next primitive runs. Other threads may run before that, so each thread has its own token.
# - The trace of a compiled function. Helpers in it close over values that live only for that trace, so it uses a new
#   token (`fresh`). At every assignment of a variable in the trace it takes another new token (`renew`), because
#   helpers may have captured the old value. What a read of a variable returns also depends on the open tapes and on the
#   replica. So once a helper has read a variable (`note_read`), each change of tape or replica takes a new token, too
#   (`renew_if_read`). So does every further tape of a replica (`enter_tape`).
#
# (Elsewhere, a read of a variable under a transform raises an error. `grad` and `vmap` alone in eager code, which build
# no jaxpr, may read a plain variable that is not trainable: `variables.access.check_readable`.)
#
# The second user context distinguishes replicas. In a compiled run, each local replica has its own token
# (`replica_tokens`), because the trace of a helper contains the tracers that the helper closes over: an array that the
# replica function has just stored in a module's attribute belongs to one replica, and the next replica stores another
# one. The tokens of two runs differ, even if one compiled function calls both.
#
# In an eager run, such an array is a constant of the trace, as in plain JAX (under a tape, the trace is evicted,
# below). There the replicas share one token, `RUN`, which keeps their traces separate from those outside `run`: every
# further trace would cost a compilation. But the trace of a helper that reads `replica_id_in_sync_group` or
# `num_replicas_in_sync` contains the value as a constant, and the trace of a helper that calls a collective contains a
# placeholder for one replica's operand of the collective (`Merge.nested`). Once an eager run has traced one such
# helper, each replica of eager runs uses its own token until the process ends (`separate_replicas`).
#
# Supports JAX 0.10 to 0.12 (`UserConfig._obj` is the `Config` behind a user context, for setting it without a `with`
# block).
#
# In the first context, a tuple token `(_TRACE, n)` marks the trace of a compiled function: `renew`, `leave_tape` and
# `restore_tokens` recognise it by its type. The other tokens are strings or None. In the second context, where the
# token of a replica of an eager run is a tuple, too, nothing depends on that.
#
# The VJP rule of an operation closes over no values, so it is derived under the default token of both contexts
# (`Operation.rule`), and all replicas share it. If the operation contains custom derivative rules, whose Python code
# may call a helper that reads the replica id, it is derived under the replica's token.
#
# Code that runs while all tapes are suspended (`TapeTrace.under_parent`, `Operation.rule`, the backward pass) or that
# computes eagerly inside a trace uses the default token None, so it shares its traces with code outside of tapes.
# `Recording._is_traced_for_later` takes the token None as the sign that the tape is suspended on purpose.
#
# Programs of `mirrored.function` are cached separately, without tokens (`Function._program`). No key contains the value
# of a variable, which is an operand of the program.

T = TypeVar("T")

RUN = "mirrored.run"
_TRACE = "mirrored.trace"

_context = jax.make_user_context(None)
holder = _context._obj
_serial = itertools.count(1)
_replica_context = jax.make_user_context(None)
replica_holder = _replica_context._obj


def current() -> Hashable:
    """Returns the token that this thread adds to the keys of JAX's tracing caches; None by default."""
    token: Hashable = holder.value
    return token


put: Callable[[Hashable], None] = holder.set_local
put_replica: Callable[[Hashable], None] = replica_holder.set_local


def restore_tokens(token: Hashable, replica_token: Hashable) -> None:
    """Sets this thread's keys for JAX's tracing caches to saved values.

    A saved `token` of a compiled function's trace is ignored: the trace may have taken a newer token meanwhile
    (`renew`). Under the older one, JAX would find helpers that have captured the old values of variables.
    """
    if not isinstance(token, tuple):
        put(token)
    replica_holder.set_local(replica_token)


class using:
    """Context manager that adds `token` to the keys of JAX's tracing caches in this thread.

    An interrupt at its entry or exit, such as Ctrl-C, restores the tokens. A generator would not do: what interrupts
    the entry after its ``yield`` does not end it. `without_replica` omits the token of this thread's replica, too.
    """

    __slots__ = ("_previous", "_token", "_without_replica")

    def __init__(self, token: Hashable, *, without_replica: bool = False) -> None:
        self._token, self._without_replica = token, without_replica

    def __enter__(self) -> None:
        self._previous = holder.value, replica_holder.value
        try:
            put(self._token)
            if self._without_replica:
                put_replica(None)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            put(self._previous[0])
        finally:
            if self._without_replica:
                put_replica(self._previous[1])


class _TapeToken:
    """A string that gives one thread's gradient tapes their own entries in JAX's tracing caches."""

    _pool: ClassVar[list[str]] = []

    def __init__(self) -> None:
        try:
            self.name = self._pool.pop()
        except IndexError:
            self.name = f"mirrored.tape.{next(_serial)}"

    def __del__(self) -> None:
        self._pool.append(self.name)


class _TapeThread(threading.local):
    token: _TapeToken | None = None


_tape_thread = _TapeThread()


def tape_token() -> str:
    """Returns the token that the eager tapes of this thread add to the keys of JAX's tracing caches."""
    return _own_tape_token().name


def _own_tape_token() -> _TapeToken:
    token = _tape_thread.token
    if token is None:
        token = _tape_thread.token = _TapeToken()
    return token


def carry_tape_token() -> Callable[[], None]:
    """Returns a function that copies this thread's tracing-cache key to the thread that calls the function."""
    token = _own_tape_token()
    return lambda: setattr(_tape_thread, "token", token)


class _TraceCache:
    """Tracing-cache keys and cached objects that belong to one trace of a compiled function.

    Attributes:
        is_separate: Whether every change of tape or replica takes a new token, so that helpers are traced again.
        tokens: All tokens of the trace. No other trace uses them.
        taped: The replicas' tokens under which a tape has been opened.
        objects: What other modules cache for this trace alone (`for_this_trace`).
    """

    def __init__(self) -> None:
        self.is_separate = False
        self.tokens: set[Hashable] = set()
        self.taped: set[Hashable] = set()
        self.objects: dict[object, Any] = {}

    def new_token(self) -> Hashable:
        """Returns a token that no other trace has used or will use."""
        token = (_TRACE, next(_serial))
        self.tokens.add(token)
        return token


# Replica threads inherit the value, because `LockStep` starts them in a copy of the context.
_trace_cache: ContextVar[_TraceCache | None] = ContextVar("mirrored.sharing", default=None)


@contextmanager
def fresh() -> Iterator[None]:
    """Isolates JAX's tracing caches in a ``with`` block: the block reuses no older trace and leaves none behind."""
    cache, outer = _TraceCache(), _trace_cache.get()
    try:
        _trace_cache.set(cache)
        with using(cache.new_token()):
            yield
    finally:
        _trace_cache.set(outer)
        # JAX's caches would keep the helpers' jaxprs under tokens that are never looked up again: 0.75 MB per model.
        forget_tokens(cache.tokens)


def for_this_trace(key: object, make: Callable[[], T]) -> T | None:
    """Returns the object cached for `key` in the current `fresh()` block, created by `make`; None outside a block.

    Use it for a cache whose keys contain a jaxpr or a token of the block. No later trace would find such an entry, and
    a process-wide cache would keep the jaxprs alive.

    Args:
        key: Identifies the object within the block.
        make: Creates it. A replica's thread shares the object of the thread that started the run.
    """
    cache = _trace_cache.get()
    if cache is None:
        return None
    found: T | None = cache.objects.get(key)
    return cache.objects.setdefault(key, make()) if found is None else found


def renew() -> None:
    """Switches to a new tracing-cache token in a `fresh()` block, so that JAX finds no earlier trace of a function.

    Call it when a value that helpers may have captured changes within the block.
    """
    if isinstance(current(), tuple):
        cache = _trace_cache.get()
        put((_TRACE, next(_serial)) if cache is None else cache.new_token())


def note_read() -> None:
    """Records that a traced function reads a variable, so that JAX retraces functions when the tape or replica changes.

    JAX caches the trace in progress under the token from its start, which is replaced here. So the next call traces the
    helper once more. From then on its traces are reused only until the tape or the replica changes: a thread takes a
    new token when a tape opens, closes, is reset or watches a variable, and when a replica starts or continues. A
    return to an earlier tape or replica takes a new token, too, and not the earlier one.
    """
    cache = _trace_cache.get()
    if cache is not None and not cache.is_separate:
        cache.is_separate = True
        renew()


def renew_if_read() -> None:
    """Makes JAX retrace jitted functions if any function in the current trace has read a variable (see `note_read`)."""
    cache = _trace_cache.get()
    if cache is not None and cache.is_separate:
        renew()


def enter_tape() -> None:
    """Makes JAX retrace jitted functions when a tape opens, except for a replica's first tape in a trace.

    The first tape has this effect, too, if a function has read a variable (`note_read`).

    A helper may have closed over a value that an earlier tape of the trace has recorded, through a mutable object (a
    module's attribute). The new tape would find no gradient through it.
    """
    cache = _trace_cache.get()
    if cache is not None:
        replica: Hashable = replica_holder.value
        if cache.is_separate or replica in cache.taped:
            renew()
        cache.taped.add(replica)


def leave_tape(outer: Hashable) -> None:
    """Restores the tracing-cache token that was current before a tape's ``with`` block; called at the end of the block.

    Args:
        outer: The token before the block. If it is that of a compiled function's trace, it is not restored, because the
            block may have renewed it.
    """
    if isinstance(outer, tuple) and isinstance(current(), tuple):
        renew_if_read()
    else:
        put(outer)


class _Replicas:
    """Process-wide flag that makes JAX cache separate traces for each replica of an eager run; never cleared."""

    is_separate = False


@dataclasses.dataclass(frozen=True)
class OwnTraces:
    """A tracing-cache token for one replica in one traced `Strategy.run`."""

    run: int
    local: int


def replica_tokens(replicas: int) -> list[OwnTraces]:
    """Returns a unique tracing-cache key for each local replica of one `Strategy.run`."""
    run = next(_serial)
    return [OwnTraces(run, local) for local in range(replicas)]


@contextmanager
def for_replica(own: Hashable) -> Iterator[None]:
    """Makes JAX cache the traces of a ``with`` block for one replica, separately from traces outside `Strategy.run`.

    The traces of different replicas are separate in compiled runs, and in eager ones after `separate_replicas`.

    Args:
        own: The replica's token.
    """
    previous: Hashable = replica_holder.value
    try:
        resume_replica(own)
        yield
    finally:
        replica_holder.set_local(previous)


def resume_replica(own: Hashable) -> None:
    """Sets a replica's tracing-cache token in this thread, when the replica starts or continues.

    This is the replica's own token in a compiled run (`OwnTraces`) and after `separate_replicas`, otherwise `RUN`. If
    a helper has read a variable in the current trace of a compiled function, the thread also takes a new token for that
    trace (`renew_if_read`), so helpers are traced again.
    """
    replica_holder.set_local(own if _Replicas.is_separate or isinstance(own, OwnTraces) else RUN)
    renew_if_read()


def separate_replicas(own: Hashable) -> None:
    """Makes JAX cache separate traces for each replica of eager `Strategy.run` calls, from now on.

    Called while JAX traces a helper that has read a value of its replica, such as the replica id, or has called a
    collective (`ReplicaRunner.separate_traces`): the trace then contains a part that belongs to this replica. JAX
    caches the trace in progress under the shared token, which is never used again.

    Args:
        own: The token of the replica that runs in this thread.
    """
    if not isinstance(own, OwnTraces):
        _Replicas.is_separate = True
    resume_replica(own)


# Evicts traces of functions from JAX's tracing caches.
#
# If a helper closes over a box through a mutable object (a model's attribute, a list), its trace contains a stand-in of
# that box as a constant. In the next step the object holds another box, so the trace must not be reused after the call.
# JAX's tracing caches have the function in their keys, and can drop all entries of one function (`evict_weakref`). When
# JAX asks for the value of a box inside a transform (`boxes.stand_in`), the Python stack shows which functions JAX is
# tracing (`functions_being_traced`). The tape collects them, and evicts their traces before it executes its next
# primitive, or else when it stops recording (`TapeTrace.mark_stale`, `forget_traces`): the thread's next tape has the
# same token.
#
# The second kind of eviction only frees memory. The tokens of a compiled function's trace are never used again, so
# `fresh` evicts, when that trace ends, the functions that have entries under them (`forget_tokens`).
#
# Supports JAX 0.10 to 0.12: functions of `jax._src` that are tracing hold the traced function in a local variable such
# as `fun`, `f` or `fun_`.

_SHAPE_CACHES = ("canonicalize_sharding", "current_jaxpr_eqn_context", "_broadcast_shapes_cached")
_NAMES = ("fun", "f", "fun_", "f_", "body_fun", "cond_fun", "branches", "true_fun", "false_fun")


def functions_being_traced() -> list[Any]:
    """Returns the Python functions that JAX is tracing in this thread, innermost first."""
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
    """Evicts every trace of `functions` from JAX's tracing caches, which all threads share."""
    caches = [cache for cache in list(_util._caches) if hasattr(cache, "evict_weakref")]
    for function in functions:
        for cache in caches:
            # A cache keyed by MLIR modules cannot compare them with a function.
            with suppress(TypeError):
                cache.evict_weakref(function)


def forget_tokens(tokens: Set[Hashable]) -> None:
    """Evicts from JAX's tracing caches every function that has a trace whose cache key contains one of `tokens`.

    A JAX cache cannot evict a single trace, only all traces of a function. JAX traces the function again when it is
    called under another token. The caches of shapes and shardings cannot evict single entries. They are cleared as a
    whole: their keys contain the token, so every trace adds about 200 entries that no other trace finds. JAX refills
    them in less than a millisecond.
    """
    for cache in _shape_caches():
        cache.cache_clear()
    for cache in list(_util._caches):
        if hasattr(cache, "evict_weakref"):
            for function in {id(one): one for one in _functions_under(cache.cache_keys(), tokens)}.values():
                cache.evict_weakref(function)


@functools.cache
def _shape_caches() -> tuple[Any, ...]:
    """Returns JAX's caches of small results that depend only on shapes, dtypes and shardings."""
    wrapped = [(one, getattr(one, "__wrapped__", one)) for one in list(_util._caches)]
    named = [one for one, function in wrapped if getattr(function, "__name__", None) in _SHAPE_CACHES]
    return (*named, _partial_eval._cached_abstract_eval)


def _functions_under(keys: Iterable[Any], tokens: Set[Hashable]) -> Iterator[Any]:
    """Yields the function of each tracing-cache key in `keys` that contains one of `tokens`.

    A key consists of a weak reference to the function, JAX's trace context, and further parts.
    """
    for key in keys:
        reference, context = key[0], key[1]
        if isinstance(reference, weakref.ref) and isinstance(context, tuple):
            if any(type(one) is tuple and len(one) == 2 and one in tokens for one in context):
                function = reference()
                if function is not None:
                    yield function
