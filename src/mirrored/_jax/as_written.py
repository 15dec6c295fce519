"""Programs compiled as they are written: no computation merged with another that looks the same.

How often a value is used decides which of the compiler's rewrites apply to it (`a / broadcast(b)` becomes a product
with 1 / b if the broadcast has two users), so whatever merges equal computations across the replicas of one device
makes bits depend on how many replicas a device has. Two things merge: the pass `cse`; and the round trip through
Shardy, which merges constants and broadcast scalars and is made for several devices only *(seen in the passes' dumps:
64 broadcasts before Shardy, 50 after)*. So such programs are partitioned by GSPMD, with `cse` left out.

On CPUs the pass `small-while-loop-hoisting` makes one function of a small loop without collectives, in which LLVM
contracts products and sums across operations. The loop over the steps of one call has collectives on several devices
only: its bits would depend on the layout. The pass is left out, too.

Serves JAX 0.10 to 0.12, where GSPMD is deprecated: XLA warns of it with every program, which is silenced around the
call. A JAX without it needs another way; the probe test will tell.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import config as _config
from jax._src.lib import utils as _logging  # type: ignore[attr-defined]

from mirrored._jax.dispatch import Dispatch

_WITHOUT_MERGING = {"xla_disable_hlo_passes": "cse,small-while-loop-hoisting"}
_LEVELS = {"INFO": 0, "DEBUG": 0, "WARNING": 1, "ERROR": 2, "CRITICAL": 3}
_ONLY_ERRORS = 2


class AsWritten:
    """`jax.jit` of a function, compiled as it is written.

    Args:
        function: Traced at the first call, as `jax.jit` does.
        options: What `jax.jit` takes.

    Attributes:
        jitted: What `jax.jit` returned.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.jitted = jax.jit(function, compiler_options=_WITHOUT_MERGING, **options)

    def __call__(self, *args: Any) -> Any:
        """Runs it, compiling it first if need be."""
        with _partitioned_unmerged():
            return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        """JAX's lowering for these arguments."""
        with _partitioned_unmerged():
            return _Lowered(self.jitted.lower(*args))


class _Lowered:
    """A lowering that is compiled as the call would compile it; all else is the lowering's."""

    def __init__(self, lowered: Any) -> None:
        self._lowered = lowered

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        with _partitioned_unmerged():
            return self._lowered.compile(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


def jit(function: Callable[..., Any], *, as_written: bool, **options: Any) -> Any:
    """`jax.jit` of `function`, or one that keeps it as written."""
    return AsWritten(function, **options) if as_written else jax.jit(function, **options)


def dispatch_of(jitted: Any) -> Dispatch:
    """What `jit` returned, to be called so that its results survive exceptions."""
    if isinstance(jitted, AsWritten):
        # JAX's fast path knows nothing of the partitioner: only a cache miss asks for it.
        return Dispatch(jitted.jitted, _partitioned_unmerged)
    return Dispatch(jitted)


@contextmanager
def _partitioned_unmerged() -> Iterator[None]:
    _logging.absl_set_min_log_level(max(_ONLY_ERRORS, _level()))
    try:
        with _config.use_shardy_partitioner(False):
            yield
    finally:
        _logging.absl_set_min_log_level(_level())


def _level() -> int:
    """The lowest level that XLA logs, as JAX's configuration or else the environment says."""
    level = getattr(jax.config, "jax_logging_level", None)
    if level in _LEVELS:
        return _LEVELS[level]
    told = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return int(told) if told.isdigit() else 1
