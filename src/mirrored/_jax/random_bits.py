"""Lowers the generator of `rbg` random keys so that XLA fuses it alike with one and with several replicas per device.

XLA expands `rng_bit_generator` to a computation and a call of it. The call is inlined only if it is the only one of
this computation. A device with one replica has one call, and XLA then fuses the generator with what reads the bits,
such as the logarithm of `jax.random.exponential`. LLVM does not vectorize so large a kernel, and scalar and vectorized
logarithms differ in the last bit. In a program with bit-identical results (`BitIdenticalJit`), the bits are therefore
behind an optimization barrier, which XLA removes after fusion.

Supports JAX 0.10 to 0.12.

Source: `RngBitGeneratorExpander` in XLA, `call_inliner.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from jax import lax
from jax.interpreters import mlir as _public_mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import hlo as _hlo
from mirrored._jax.private import mlir as _mlir

_lowerings: Final[Any] = _mlir._lowerings
_GENERATORS: Final = (lax.rng_bit_generator_p, lax.rng_uniform_p)


def _bounded(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Wraps a generator's lowering rule so that its results are behind a barrier."""

    def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        results = rule(ctx, *operands, **params)
        if _config.use_shardy_partitioner.value:  # not a bit-identical program (`bit_identical_compilation`)
            return results
        barrier = _hlo.OptimizationBarrierOp(list(results))
        bits: list[Any] = list(barrier.results)
        return bits

    return lower


def connect_random_bits() -> None:
    """Registers lowering rules of the random bit generators whose results are not fused with other operations."""
    for primitive in _GENERATORS:
        _public_mlir.register_lowering(primitive, _bounded(_lowerings[primitive].rule))
