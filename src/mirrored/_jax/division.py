"""Lowers division so that XLA rewrites each division alike, whether or not other operations use the divisor.

XLA for CPU rewrites `a / broadcast(b)` to `a * broadcast(1 / b)` if the broadcast is the only user of `b`, and the two
differ in the last bit. The replicas of a device share values, such as an argument, a variable or the result of a merge.
Such a value has one user on a device with one replica, and several users on a device with several. In a program with
bit-identical results (`BitIdenticalJit`), each division therefore has a copy of the divisor of its own, behind an
optimization barrier, which XLA removes after this rewrite.

The divisor can become a broadcast: XLA rewrites an operation on broadcast scalars to the broadcast of an operation on
scalars. The order of these rewrites depends on constants, which all replicas of a device share, because the conversion
to HLO merges equal ones. A divisor that is computed from nothing but constants and broadcast scalars (a *uniform* one)
therefore gets the barrier, too. JAX lowers a nested function once for all of its calls. After the body of a `shard_map`
has been lowered, all calls are known: a divisor in a nested function then gets the barrier if it is uniform because one
call passes uniform arguments.

XLA rewrites `a / c` with a constant `c` to `a * (1 / c)`, unless `a` is a constant, too: it computes that quotient. An
array over which a function closes becomes a constant at different times for the replicas of a device, so the dividend
of a constant is behind a barrier, too.

XLA also expands functions such as `polygamma` to divisions, after JAX's lowering rules. Their operands are behind
barriers, so that no divisor in them is uniform.

Supports JAX 0.10 to 0.12: a primitive's lowering rule is in `mlir._lowerings`, and gets the operands as MLIR values.
JAX does not export their classes (hence `Any`).

Source: `AlgebraicSimplifierVisitor::HandleDivide` and `HandleBroadcast` in XLA's `algebraic_simplifier.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from jax import lax
from jax.interpreters import mlir as _public_mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import hlo as _hlo
from mirrored._jax.private import mlir as _mlir

_CONSTANT, _BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"
_BARRIER: Final = "stablehlo.optimization_barrier"
_EXPANDED: Final = (lax.lgamma_p, lax.digamma_p, lax.polygamma_p, lax.zeta_p, lax.bessel_i1e_p)
_DIVIDE, _CALL = "stablehlo.divide", "func.call"
_NAME, _CALLEE = "sym_name", "callee"
_MOST_VISITED: Final = 64
_lowerings: Final[Any] = _mlir._lowerings
_rule: Final[Any] = _lowerings[lax.div_p].rule


def _is_bit_identical() -> bool:
    # The partitioner is set only while a bit-identical program is compiled (`bit_identical`).
    return not _config.use_shardy_partitioner.value


def _divide(ctx: Any, dividend: Any, divisor: Any, **params: Any) -> Any:
    if _is_bit_identical():
        if _is_constant(divisor):
            dividend = _behind_barrier(dividend)
        divisor = _with_one_use(divisor, len(ctx.avals_out[0].shape))
    return _rule(ctx, dividend, divisor, **params)


def _is_constant(value: Any) -> bool:
    """Returns whether a value is a constant or a broadcast constant."""
    name = getattr(value.owner, "name", None)
    return name == _CONSTANT or (name == _BROADCAST and _is_constant(value.owner.operands[0]))


def _with_one_use(divisor: Any, rank: int) -> Any:
    """Hides a uniform divisor behind a barrier that only the division uses; returns other divisors unchanged."""
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
    if name == _CONSTANT:
        return divisor
    if len(divisor.type.shape) == rank and not (rank and _is_uniform(divisor)):
        return divisor
    return _behind_barrier(divisor)  # JAX broadcasts scalars in the rule


def _is_uniform(value: Any, is_uniform_argument: Callable[[Any], bool] = lambda argument: False) -> bool:
    """Returns whether a value is computed from nothing but constants and scalars, or from too many values to look."""
    pending, visited = [value], 0
    while pending and visited < _MOST_VISITED:
        visited += 1
        value = pending.pop()
        owner = value.owner
        name = getattr(owner, "name", None)
        if name is None:
            if not is_uniform_argument(value):
                return False
            continue
        if not len(owner.operands) and name != _CONSTANT:
            return False
        pending += [operand for operand in owner.operands if operand.type.shape]
    return True


def separate_divisors(module: Any, functions: Iterable[Any]) -> None:
    """Hides each divisor of nested functions that is uniform because a caller passes a uniform argument.

    Args:
        module: The MLIR module, with all calls of the functions.
        functions: The functions of the module whose divisions are examined.
    """
    divisions: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == _DIVIDE and _may_be_uniform(operation.operands[1]):
            divisions.append(operation)
        return _public_mlir.ir.WalkResult.ADVANCE

    for function in functions:
        function.operation.walk(visit)
    callers = _Callers(module) if divisions else None
    for division in divisions:
        divisor = division.operands[1]
        if callers is not None and _is_uniform(divisor, callers.pass_uniform):
            with _public_mlir.ir.InsertionPoint(division), division.location:
                division.operands[1] = _behind_barrier(divisor)


class _Callers:
    """The calls of the functions of a module."""

    def __init__(self, module: Any) -> None:
        self._calls: dict[str, list[Any]] = {}
        self._known: dict[tuple[str, int], bool] = {}
        module.operation.walk(self._visit)

    def _visit(self, operation: Any) -> Any:
        if operation.name == _CALL:
            self._calls.setdefault(operation.attributes[_CALLEE].value, []).append(operation)
        return _public_mlir.ir.WalkResult.ADVANCE

    def pass_uniform(self, argument: Any) -> bool:
        """Returns whether a call passes a uniform value for an argument of a function; False for those of loops."""
        attributes = argument.owner.owner.attributes
        if _NAME not in attributes:
            return False
        key = attributes[_NAME].value, argument.arg_number
        if key not in self._known:
            calls = self._calls.get(key[0], ())
            self._known[key] = any(_is_uniform(call.operands[key[1]], self.pass_uniform) for call in calls)
        return self._known[key]


def _may_be_uniform(divisor: Any) -> bool:
    """Returns whether the divisor of a lowered division is an array without a barrier that is not a constant."""
    return bool(divisor.type.shape) and getattr(divisor.owner, "name", None) not in (_BARRIER, _CONSTANT, _BROADCAST)


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
