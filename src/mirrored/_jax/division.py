"""Lowers division so that XLA rewrites each division alike, whether or not other operations use the divisor.

XLA for CPU rewrites `a / broadcast(b)` to `a * broadcast(1 / b)` if the broadcast is the only user of `b`, and
`a / sqrt(b)` to `a * rsqrt(b)`. The results differ in the last bit. The replicas of a device share values, such as an
argument, a variable or the result of a merge. Such a value has one user on a device with one replica, and several users
on a device with several. When XLA sees the operations of a divisor depends on the replicas per device, too, because the
conversion to HLO merges equal constants and inlines functions. In a program with bit-identical results
(`BitIdenticalJit`), each division therefore has a copy of the divisor of its own, behind an optimization barrier, which
XLA removes after these rewrites.

XLA rewrites `a / c` with a constant `c` to `a * (1 / c)`, unless `a` is a constant, too: it computes that quotient. An
array over which a function closes becomes a constant at different times for the replicas of a device, so the dividend
of a constant is behind a barrier, too.

XLA also expands functions such as `polygamma` to divisions, after JAX's lowering rules. Their operands are behind
barriers.

Supports JAX 0.10 to 0.12: a primitive's lowering rule is in `mlir._lowerings`, and gets the operands as MLIR values.
JAX does not export their classes (hence `Any`).

Source: `AlgebraicSimplifierVisitor::HandleDivide` and `HandleBroadcast` in XLA's `algebraic_simplifier.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from jax import lax
from jax.interpreters import mlir as _public_mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import hlo as _hlo
from mirrored._jax.private import mlir as _mlir

_CONSTANT, _BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"
_EXPANDED: Final = (lax.lgamma_p, lax.digamma_p, lax.polygamma_p, lax.zeta_p, lax.bessel_i1e_p)
_lowerings: Final[Any] = _mlir._lowerings
_rule: Final[Any] = _lowerings[lax.div_p].rule


def _is_bit_identical() -> bool:
    # The partitioner is set only while a bit-identical program is compiled (`bit_identical`).
    return not _config.use_shardy_partitioner.value


def _divide(ctx: Any, dividend: Any, divisor: Any, **params: Any) -> Any:
    if _is_bit_identical():
        if _is_constant(divisor):
            dividend = _behind_barrier(dividend)
        divisor = _with_one_use(divisor)
    return _rule(ctx, dividend, divisor, **params)


def _is_constant(value: Any) -> bool:
    """Returns whether a value is a constant or a broadcast constant."""
    name = getattr(value.owner, "name", None)
    return name == _CONSTANT or (name == _BROADCAST and _is_constant(value.owner.operands[0]))


def _with_one_use(divisor: Any) -> Any:
    """Returns the divisor behind a barrier that only the division uses; a constant is returned unchanged."""
    if _is_constant(divisor):
        return divisor
    owner = divisor.owner
    if getattr(owner, "name", None) != _BROADCAST:  # a function's argument belongs to a block, which has no name
        return _behind_barrier(divisor)
    dimensions = owner.attributes["broadcast_dimensions"]
    broadcast = _hlo.BroadcastInDimOp(divisor.type, _behind_barrier(owner.operands[0]), dimensions)
    return broadcast.result


def _behind_barrier(value: Any) -> Any:
    barrier = _hlo.OptimizationBarrierOp([value])
    return barrier.results[0]


def _hidden(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Wraps a function's lowering rule so that its operands are behind barriers."""

    def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        if _is_bit_identical():
            operands = tuple(_behind_barrier(operand) for operand in operands)
        return rule(ctx, *operands, **params)

    return lower


def connect_division() -> None:
    """Registers lowering rules of division that make XLA's rewrites independent of other uses of the divisor."""
    # JAX would cache the result of the rule, and so pass arguments of a function instead of the operands.
    _public_mlir.register_lowering(lax.div_p, _divide, cacheable=False)
    for primitive in _EXPANDED:
        _public_mlir.register_lowering(primitive, _hidden(_lowerings[primitive].rule))
