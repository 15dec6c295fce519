"""Marks operations with several results inside `jax.shard_map` as computed by each device on its own.

Bit-identical programs are partitioned by XLA's GSPMD (`bit_identical`), which derives the sharding of each operation in
the body of a `shard_map` from those of its operands and users. For an operation with several results, GSPMD can derive
"manual" (each device on its own) for one result and "replicated" for another, which nothing reads: a call of a nested
`jax.jit` with several results gives it such pairs. For sorts, custom calls and random bits it then aborts the process,
in `HloSharding::NumTiles` *(the gradient of `jnp.median`, for several replicas per device)*, and for a reduction with
several results (`argmax`) in `ReshapeSharding` *(`gammasgn` of constants)*. Other operations with several results, such
as loops and conditionals, compile. GSPMD keeps shardings that a program states, so the lowering of `shard_map` states
them for these operations. They change no value. XLA refuses a sharding for `approx_max_k`, which compiles without it.

The simplification before XLA's passes replaces a sort that carries an array which nothing reads by a sort without the
array and without the sharding. The results of sorts from which it could remove one of three or more are therefore
behind an optimization barrier. Keys are never removed, and a sort with one result needs no sharding.

Supports JAX 0.10 to 0.12: the lowering rule of `shard_map` puts the body and the functions that it calls into the
module, as functions. JAX keeps lowered functions for other calls, in JAX 0.10 also for calls outside of the body, whose
operations must not be marked: the body therefore has caches of its own. JAX does not export the classes of MLIR (hence
`Any`).

Source: `ShardingPropagation` in XLA's `sharding_propagation.cc`, for tuples; `SpmdPartitioningVisitor::HandleSort` in
`spmd_partitioner.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jax import lax
from jax.interpreters import mlir as _public_mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import hlo as _hlo
from mirrored._jax.private import mlir as _mlir
from mirrored._jax.private import shard_map as _shard_map

_MARKED: Final = frozenset(
    {"stablehlo.sort", "stablehlo.custom_call", "stablehlo.rng_bit_generator", "stablehlo.reduce"}
)
_SHARDING: Final = "mhlo.sharding"
_TARGET, _APPROXIMATE = "call_target_name", "ApproxTopK"
_AXES: Final = ("newly_manual_axes", "manual_axes")  # JAX 0.12; before
_lowerings: Final[Any] = _mlir._lowerings
_rule: Final[Any] = _lowerings[_shard_map.shard_map_p].rule
_sort_rule: Final[Any] = _lowerings[lax.sort_p].rule


def _lower_shard_map(ctx: Any, *operands: Any, **params: Any) -> Any:
    # The partitioner is set only while a bit-identical program is compiled (`bit_identical`).
    if _config.use_shardy_partitioner.value:
        return _rule(ctx, *operands, **params)
    functions = ctx.module_context.module.body.operations
    existing = {function.sym_name.value for function in functions}
    module_context = ctx.module_context.replace(lowering_cache={}, cached_primitive_lowerings={})
    inner = ctx.replace(module_context=module_context)
    results = _rule(inner, *operands, **params)
    ctx.set_tokens_out(inner.tokens_out)
    if _is_manual(params):
        for function in functions:
            if function.sym_name.value not in existing:
                function.operation.walk(_mark)
    return results


def _lower_sort(ctx: Any, *operands: Any, num_keys: int, **params: Any) -> Sequence[Any]:
    results: Sequence[Any] = _sort_rule(ctx, *operands, num_keys=num_keys, **params)
    if _config.use_shardy_partitioner.value or len(results) <= max(num_keys, 2):
        return results
    barrier = _hlo.OptimizationBarrierOp(results)
    return list(barrier.results)


def _is_manual(params: dict[str, Any]) -> bool:
    """Tells whether each device runs the body on its own, that is, for several devices and all axes of their mesh."""
    mesh = params["mesh"]
    axes = next(params[name] for name in _AXES if name in params)
    return mesh.size > 1 and {*axes, *mesh.manual_axes} == {*mesh.axis_names}


def _mark(operation: Any) -> Any:
    """States the sharding of an operation's results, unless JAX has stated it, as for callbacks, or XLA refuses it."""
    if operation.name in _MARKED and (count := len(operation.results)) > 1:
        attributes = operation.attributes
        is_refused = _TARGET in attributes and attributes[_TARGET].value == _APPROXIMATE
        if _SHARDING not in attributes and not is_refused:
            manual = ", ".join(["{manual}"] * count)
            attributes[_SHARDING] = _public_mlir.ir.StringAttr.get(f"{{{manual}}}")
    return _public_mlir.ir.WalkResult.ADVANCE


def connect_manual_results() -> None:
    """Registers lowering rules of `shard_map` and sorts that state the shardings of operations with several results."""
    _public_mlir.register_lowering(_shard_map.shard_map_p, _lower_shard_map)
    _public_mlir.register_lowering(lax.sort_p, _lower_sort)
