"""Compiles programs as written: XLA does not merge equal computations, so results are bit-identical.

The number of users of a value determines which compiler rewrites apply to it: `a / broadcast(b)` becomes a product with
1 / b if the broadcast has two users. If equal computations of the virtual replicas of one device are merged, bits
therefore depend on the number of replicas per device. Two parts of XLA merge them: the pass `cse`, and the round trip
through Shardy, which merges constants and broadcast scalars and runs only for several devices *(seen in the passes'
dumps: 64 broadcasts before Shardy, 50 after)*. Such programs are therefore partitioned by GSPMD, and `cse` is disabled.

On CPUs, the pass `small-while-loop-hoisting` turns a small loop without collectives into one function, in which LLVM
contracts products and sums across operations. The loop over the steps of one call has collectives only on several
devices, so its bits would depend on the device assignment. This pass is disabled as well.

Supports JAX 0.10 to 0.12, where GSPMD is deprecated. XLA logs a warning for every such program, which is silenced
around the call. A JAX version without GSPMD needs another method; the probe test will fail there.
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
    """`jax.jit` of a function, compiled as written.

    Args:
        function: The function. As with `jax.jit`, it is traced at the first call.
        options: Options of `jax.jit`.

    Attributes:
        jitted: The result of `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.jitted = jax.jit(function, compiler_options=_WITHOUT_MERGING, **options)

    def __call__(self, *args: Any) -> Any:
        """Runs the function. Compiles it first if necessary."""
        with _partitioned_unmerged():
            return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        """Returns JAX's lowering for these arguments."""
        with _partitioned_unmerged():
            return _Lowered(self.jitted.lower(*args))


class _Lowered:
    """A lowering whose `compile` uses the same compiler settings as the call. Other attributes are forwarded."""

    def __init__(self, lowered: Any) -> None:
        self._lowered = lowered

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        with _partitioned_unmerged():
            return self._lowered.compile(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


def jit(function: Callable[..., Any], *, as_written: bool, **options: Any) -> Any:
    """Returns `jax.jit` of `function`, or its `AsWritten` counterpart."""
    return AsWritten(function, **options) if as_written else jax.jit(function, **options)


def dispatch_of(jitted: Any) -> Dispatch:
    """Returns a `Dispatch` of a result of `jit`, whose results survive exceptions in the calling thread."""
    if isinstance(jitted, AsWritten):
        # The partitioner setting matters only on a cache miss, which compiles; JAX's fast path does not check it.
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
    """Returns XLA's minimum log level, from JAX's configuration or else from the environment."""
    level = getattr(jax.config, "jax_logging_level", None)
    if level in _LEVELS:
        return _LEVELS[level]
    value = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return int(value) if value.isdigit() else 1
