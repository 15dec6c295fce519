"""Applies a jaxpr under the current trace. Under a staging trace, copies its equations instead of binding them again.

`jax.core.eval_jaxpr` binds each equation again: it recomputes abstract values, rules and inner jaxprs (and traces each
`shard_map` again), which takes a third of the tracing time of a training step *(measured: W4 of the benchmarks)*.
Copied equations give the same program.

Supports JAX 0.10 to 0.12. `jit(inline=True)` does the same with `partial_eval.inline_jaxpr_into_trace`, but gives all
equations one source line; here each equation keeps its own. If this JAX version lacks the API, `eval_jaxpr` is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
from jax._src import config as _config
from jax._src import dtypes as _dtypes
from jax._src import source_info_util as _source_info
from jax._src.interpreters import partial_eval as _partial_eval
from jax.extend.core import Literal

from mirrored._jax.traces import belongs_to, current_trace, is_staging, is_tracer

_CAN: Final = hasattr(_partial_eval.DynamicJaxprTrace, "emit_eqn") and hasattr(_partial_eval, "try_constant_folding")


def apply_jaxpr(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Applies an open jaxpr to these values under the current trace, and returns its results.

    Context: any. JAX's settings (x64, matmul precision, ...) must be those under which the jaxpr was traced.

    Args:
        jaxpr: An open jaxpr, whose constvars are the values over which it closes.
        constants: The value of each constvar.
        args: The value of each input.
    """
    trace = current_trace()
    if _CAN and is_staging(trace) and not _config.enable_checks.value and _is_plain(jaxpr):
        return _copied(trace, jaxpr, (*constants, *args))
    return list(jax.core.eval_jaxpr(jaxpr, constants, *args))


def _is_plain(jaxpr: Any) -> bool:
    """Returns whether equations can be copied: none is high-level or has an effect on one of its operands."""
    if jaxpr.is_high:
        return False
    return not any(hasattr(e, "input") or hasattr(e, "input_index") for eqn in jaxpr.eqns for e in eqn.effects)


def _copied(trace: Any, jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    here = _source_info.current()
    given = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    known = {variable: value for variable, value in given.items() if belongs_to(value, trace)}

    def tracer_of(atom: Any) -> Any:
        tracer = None if isinstance(atom, Literal) else known.get(atom)
        if tracer is None and isinstance(atom, Literal):
            tracer = _partial_eval.DynamicJaxprTracer(trace, atom.aval, atom, here)
        elif tracer is None:
            tracer = known[atom] = trace.to_jaxpr_tracer(_as_bound(given[atom]), here)
        return tracer

    for eqn in jaxpr.eqns:
        operands = [tracer_of(atom) for atom in eqn.invars]
        known.update(zip(eqn.outvars, _added(trace, eqn, operands, here.name_stack), strict=True))
    return [_result(atom, given, known) for atom in jaxpr.outvars]


def _as_bound(value: Any) -> Any:
    """Canonicalizes `value` as binding a primitive would."""
    return value if is_tracer(value) else _dtypes.canonicalize_value(value)


def _added(trace: Any, eqn: Any, operands: Sequence[Any], name_stack: Any) -> Sequence[Any]:
    """Adds an equation to the program of `trace` and returns its results; constants if JAX can fold it."""
    source = eqn.source_info.replace(name_stack=name_stack + eqn.source_info.name_stack)
    avals = [variable.aval for variable in eqn.outvars]
    folded = _partial_eval.try_constant_folding(eqn.primitive, operands, eqn.params, avals)
    if folded is not None:
        return [trace.new_const(value, source, aval) for value, aval in zip(folded, avals, strict=True)]
    added: Sequence[Any] = trace.emit_eqn(operands, avals, eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx)
    return added


def _result(atom: Any, given: dict[Any, Any], known: dict[Any, Any]) -> Any:
    """Returns a result. An input that is passed through stays the same object."""
    if isinstance(atom, Literal):
        return atom.val
    return given[atom] if atom in given else known[atom]
