"""Lowers division so that XLA rewrites each division alike, whether or not other operations use the divisor.

XLA for CPU rewrites `a / broadcast(b)` to `a * broadcast(1 / b)` if the broadcast is the only user of `b`, and the two
differ in the last bit. The replicas of a device share values, such as an argument, a variable or the result of a merge.
Such a value has one user on a device with one replica, and several users on a device with several. In a program with
bit-identical results (`BitIdenticalJit`), each division therefore has a copy of the divisor of its own, behind an
optimization barrier, which XLA removes after this rewrite.

Supports JAX 0.10 to 0.12: a primitive's lowering rule is in `mlir._lowerings`, and gets the operands as MLIR values.
JAX does not export their classes (hence `Any`).

Source: `AlgebraicSimplifierVisitor::HandleDivide` in XLA's `algebraic_simplifier.cc`.
"""

from __future__ import annotations

from typing import Any, Final

from jax import lax
from jax.interpreters import mlir as _public_mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import hlo as _hlo
from mirrored._jax.private import mlir as _mlir

_CONSTANT, _BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"
_lowerings: Final[Any] = _mlir._lowerings
_rule: Final[Any] = _lowerings[lax.div_p].rule


def _divide(ctx: Any, dividend: Any, divisor: Any, **params: Any) -> Any:
    # The partitioner is set only while a bit-identical program is compiled (`bit_identical`).
    if not _config.use_shardy_partitioner.value:
        divisor = _with_one_use(divisor, len(ctx.avals_out[0].shape))
    return _rule(ctx, dividend, divisor, **params)


def _with_one_use(divisor: Any, rank: int) -> Any:
    """Hides a broadcast divisor behind a barrier that only the division uses; returns other divisors unchanged."""
    owner = divisor.owner
    name = getattr(owner, "name", None)  # a function's argument belongs to a block, which has no name
    if name == _BROADCAST:
        value = owner.operands[0]
        if getattr(value.owner, "name", None) == _CONSTANT:
            return divisor
        broadcast = _hlo.BroadcastInDimOp(
            divisor.type, _behind_barrier(value), owner.attributes["broadcast_dimensions"]
        )
        return broadcast.result
    if name == _CONSTANT or len(divisor.type.shape) == rank:
        return divisor
    return _behind_barrier(divisor)  # JAX broadcasts scalars in the rule


def _behind_barrier(value: Any) -> Any:
    barrier = _hlo.OptimizationBarrierOp([value])
    return barrier.results[0]


def connect_division() -> None:
    """Registers a division lowering rule whose rounding does not depend on other uses of the divisor."""
    _public_mlir.register_lowering(lax.div_p, _divide)
