"""Compiles programs without the XLA passes that prevent bit-identical results on different numbers of devices.

This is one of the conditions for such results; `collectives.fixed_order_tree.OrderedTree` has the others.

The number of users of a value determines which compiler rewrites apply to it: `a / broadcast(b)` becomes a product
with 1 / b if the broadcast is the only user of b (`division` gives each division a divisor of its own). If equal
computations of the virtual replicas of one device are merged, bits therefore depend on the number of replicas per
device. Two parts of XLA merge them: the pass `cse`, and the round trip through Shardy, which merges constants and
broadcast scalars and runs only for several devices *(seen in the passes' dumps: 64 broadcasts before Shardy, 50
after)*. Such programs are therefore partitioned by GSPMD, and `cse` is disabled. `manual_results` keeps GSPMD from
aborting for some operations.

On CPUs, LLVM would contract a product and a sum that XLA has put into one kernel. `products` excludes it.

On CPUs, the pass `small-while-loop-hoisting` turns a small loop without collectives into one function, in which LLVM
contracts products and sums across operations. The loop over the steps of one call has collectives only on several
devices, so its bits would depend on the device assignment. This pass is disabled as well.

XLA computes 16-bit floats in float32, and by default (`xla_allow_excess_precision`) omits the rounding between two
operations that it fuses. Such programs round after every operation.

On GPUs, the pass `dot-merger` merges the matrix products of a device's replicas that share an operand, such as a
weight, into one product of another shape, for which XLA selects another kernel. It is disabled. Autotuning selects
kernels by measured times, which differ between processes, so it is off as well, unless `XLA_FLAGS` sets its level.
Some kernels, such as scatter-adds with atomic operations, are not reproducible; `xla_gpu_deterministic_ops` excludes
them. With this option XLA fails for several fused attentions of cuDNN; `fused_attention` prevents it. Fusion remains:
a reduction's order of sums depends on the operations that are fused into it, and these are the same for each replica,
because the boundaries in `mirrored.collectives.summation` keep out whatever replicas share.

Supports JAX 0.10 to 0.12, where GSPMD is deprecated. XLA logs a warning for every such program, which is silenced
around the call. A JAX version without GSPMD needs another method; the probe test will fail there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax

from mirrored._blocks import contextmanager
from mirrored._jax.division import connect_division
from mirrored._jax.fused_attention import connect_fused_attention, deterministic_attention
from mirrored._jax.manual_results import connect_manual_results
from mirrored._jax.private import config as _config
from mirrored._jax.private import lib_utils as _logging
from mirrored._jax.products import connect_products
from mirrored._jax.random_bits import connect_random_bits

connect_division()
connect_products()
connect_random_bits()
connect_fused_attention()
connect_manual_results()

_COMPILER_OPTIONS: Final = "compiler_options_kvs"
_AUTOTUNING: Final = "xla_gpu_autotune_level"
_OPTIONS: Final[Mapping[str, str | bool | int]] = {
    "xla_disable_hlo_passes": "cse,small-while-loop-hoisting,dot-merger",
    "xla_allow_excess_precision": False,
    "xla_gpu_deterministic_ops": True,
    _AUTOTUNING: 0,
}
_LEVELS = {"INFO": 0, "DEBUG": 0, "WARNING": 1, "ERROR": 2, "CRITICAL": 3}
_ONLY_ERRORS = 2


def _compiler_options() -> dict[str, str | bool | int]:
    left = {_AUTOTUNING} if _AUTOTUNING in os.environ.get("XLA_FLAGS", "") else set()
    return {name: value for name, value in _OPTIONS.items() if name not in left}


class BitIdenticalJit:
    """A `jax.jit` function compiled without the XLA passes that make results depend on the number of devices.

    Args:
        function: The function. As with `jax.jit`, it is traced at the first call.
        options: Options of `jax.jit`.

    Attributes:
        jitted: The result of `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.jitted = jax.jit(function, compiler_options=_compiler_options(), **options)

    def __call__(self, *args: Any) -> Any:
        """Calls the function, after compiling it if the argument types are new."""
        with bit_identical_compilation():
            return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        """Lowers the function to StableHLO for the given arguments, like `lower` of a `jax.jit` function."""
        with bit_identical_compilation():
            return _Lowered(self.jitted.lower(*args))


class _Lowered:
    """A `jax.stages.Lowered` whose `compile` uses the compiler settings of `BitIdenticalJit`."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._lowered = lowered

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        with bit_identical_compilation():
            return self._lowered.compile(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


def without_compiler_options(params: dict[str, Any]) -> dict[str, Any]:
    """Returns a `jit` equation's parameters without compiler options, which JAX refuses in a nested `jit`."""
    return {**params, _COMPILER_OPTIONS: ()} if params.get(_COMPILER_OPTIONS) else params


def jit(function: Callable[..., Any], *, bit_identical: bool, **options: Any) -> Any:
    """Returns a `BitIdenticalJit` of `function` if `bit_identical` is True, otherwise `jax.jit(function)`."""
    return BitIdenticalJit(function, **options) if bit_identical else jax.jit(function, **options)


@contextmanager
def bit_identical_compilation() -> Iterator[None]:
    """Selects the GSPMD partitioner and deterministic attention while its ``with`` block compiles a program."""
    level = _level()
    try:
        _logging.absl_set_min_log_level(max(_ONLY_ERRORS, level))
        with _config.use_shardy_partitioner(False), deterministic_attention():
            yield
    finally:
        _logging.absl_set_min_log_level(level)


def _level() -> int:
    """Returns XLA's minimum log level, from JAX's configuration or else from the environment."""
    level = getattr(jax.config, "jax_logging_level", None)
    if level in _LEVELS:
        return _LEVELS[level]
    value = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return int(value) if value.isdigit() else 1
