"""Makes the tracers that custom derivative rules close over operands of the calls, where JAX builds a jaxpr.

JAX traces the function of a `jax.custom_jvp` or `jax.custom_vjp` call when it adds the call to a jaxpr. It makes what
the function closes over operands of the call, and of the programs around it (`jit`, `scan`, `shard_map`, ...). But it
traces the derivative rules only when the call is differentiated. What they close over is then no operand of anything:

- A value of an enclosing trace becomes a constant of the derived program, which belongs to the current call, so that
  a tape cannot cache the program.
- A value of the trace in which the call is has no meaning any more if that trace has ended, as that of the replicas of
  a compiled run, which a tape around the run differentiates.

So while a tape is open, or a function is compiled, the rules are traced together with the function, and the tracers
that they close over become arguments of function and rules. As before, no derivative with respect to them is defined:
those of the forward rule enter through `closed_over`, an identity that `closures` recognises. The backward rule gets
its own as residuals.

The trace of a rule is discarded, and the call left as it is, if the rule raises an error, as it does if it assigns a
variable, or closes over nothing that is traced. The rules of a call inside a rule are needed for second derivatives
only. A rule may call its own function, so they are traced to a limited depth.

Supports JAX 0.10 to 0.12: `DynamicJaxprTrace.process_custom_jvp_call` and `process_custom_vjp_call`, the calling
conventions of the flattened rules, and `custom_derivatives._handle_consts_in_bwd`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.extend.core as _extend
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir

from mirrored._jax import caches
from mirrored._jax.custom_derivatives import (
    WrappedFun,
    fill_stores_with,
    held_by_stores,
    is_from_jax,
    is_lifted,
    reset_stores,
)
from mirrored._jax.inlining import JaxprProgram, program_of
from mirrored._jax.jaxprs import aval_of, is_inexact
from mirrored._jax.private import ad_util as _ad_util
from mirrored._jax.private import custom_derivatives as _custom_derivatives
from mirrored._jax.private import linear_util as _linear_util
from mirrored._jax.private import partial_eval as _partial_eval
from mirrored._jax.traces import ShapedArray, Tracer, WithinTrace, parent_of
from mirrored.patches import replace

# Of rules that are traced inside one another.
_MOST_NESTED: Final = 2
_ZEROS: Final = (_ad_util.SymbolicZero, _ad.Zero)

# An identity without a derivative, which marks the values that a derivative rule closes over.
closed_over_p: Final = _extend.Primitive("closed_over_by_rule")
closed_over_p.def_impl(lambda array: array)
closed_over_p.def_abstract_eval(lambda array: array)
_ad.primitive_jvps[closed_over_p] = lambda primals, _: (
    closed_over_p.bind(*primals),
    _ad.Zero(aval_of(primals[0]).to_tangent_aval()),
)
_batching.primitive_batchers[closed_over_p] = lambda arrays, dims: (closed_over_p.bind(*arrays), dims[0])
_mlir.register_lowering(closed_over_p, lambda context, array: [array])


class _Nesting(threading.local):
    depth = 0


_nesting: Final = _Nesting()


class _Flat:
    """A function whose result is a list of arrays, from one whose result may also contain symbolic zeros and None.

    Args:
        function: The function of arrays.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._leaves: list[Any] = []
        self._tree: Any = None

    def __call__(self, *args: Any) -> list[Any]:
        results = self._function(*args)
        leaves, self._tree = jax.tree.flatten(results, is_leaf=lambda one: isinstance(one, _ZEROS))
        self._leaves = [one if isinstance(one, _ZEROS) else None for one in leaves]
        return [one for one in leaves if not isinstance(one, _ZEROS)]

    def restored(self, arrays: Sequence[Any]) -> Any:
        """Returns the result of the function for the given results of the flat function."""
        rest = iter(arrays)
        return jax.tree.unflatten(self._tree, [next(rest) if one is None else one for one in self._leaves])


class _Rule:
    """A derivative rule as a program, whose closed-over tracers are arguments.

    Args:
        function: The rule, as a function of arrays.
        avals: Their types.
    """

    def __init__(self, function: Callable[..., Any], avals: Sequence[Any]) -> None:
        self._flat = _Flat(function)
        _nesting.depth += 1
        try:
            self._program: JaxprProgram = program_of(self._flat, avals)
        finally:
            _nesting.depth -= 1
        self.out_avals = self._program.out_avals

    @property
    def captured(self) -> list[Any]:
        """The tracers that the rule closes over."""
        found = {id(one): one for one in self._program.constants if isinstance(one, Tracer)}
        return list(found.values())

    def __call__(self, captured: Sequence[Any], values: Sequence[Any], args: Sequence[Any]) -> Any:
        """Applies the rule with `values` in the place of the tracers `captured`."""
        instead = dict(zip(map(id, captured), values, strict=True))
        constants = [instead.get(id(one), one) for one in self._program.constants]
        return self._flat.restored(self._program.of_constants(*constants, *args))


def _traced(function: Callable[..., Any], avals: Sequence[Any]) -> _Rule | None:
    """Traces a rule in advance; returns None if that is impossible."""
    try:
        rule = _Rule(function, avals)
    except Exception:  # JAX reports it if the call is differentiated
        return None
    return rule if all(isinstance(aval_of(one), ShapedArray) for one in rule.captured) else None


def _is_needed(trace: Any, *rules: WrappedFun) -> bool:
    """Returns whether the rules of a call in a jaxpr have to be traced together with its function."""
    if _nesting.depth >= _MOST_NESTED or getattr(trace, "requires_low", False):
        return False
    # A call that is copied from another jaxpr has been converted there. A rule that is traced now may belong to a trace
    # that has ended.
    if is_lifted(rules[0]) or all(map(is_from_jax, rules)):
        return False
    # The token is that of an open tape or of a compiled function (`caches`). It is None while rules are derived, where
    # only a rule of this module is traced, for another pattern of symbolic zeros.
    return _nesting.depth > 0 or caches.current() is not None or _is_in_tape(trace)


def _is_in_tape(trace: Any) -> bool:
    while trace is not None and not hasattr(trace, "process_merge"):
        trace = parent_of(trace)
    return trace is not None


def _wrapped(function: Callable[..., Any], like: WrappedFun) -> WrappedFun:
    return _linear_util.wrap_init(function, debug_info=like.debug_info.with_unknown_names())


def _function_after(program: JaxprProgram, count: int, like: WrappedFun) -> WrappedFun:
    """Returns the function of a call, which ignores the first `count` arguments: those of the rules only."""
    return _wrapped(lambda *args: program(*args[count:]), like)


def _entered(captured: Sequence[Any]) -> list[Any]:
    """Returns what a rule closes over as operands of the call, through which no gradient flows."""
    return [closed_over_p.bind(one) if is_inexact(aval_of(one)) else one for one in captured]


def _instantiated(value: Any) -> Any:
    return _ad_util.zeros_like_aval(value.aval) if isinstance(value, _ZEROS) else value


# `jax.custom_jvp`


def _process_jvp(
    trace: Any,
    primitive: _extend.Primitive,
    function: WrappedFun,
    jvp: WrappedFun,
    operands: Sequence[Any],
    /,
    *,
    symbolic_zeros: bool,
) -> Any:
    """Adds a `custom_jvp` call to the jaxpr that `trace` builds."""
    if _is_needed(trace, jvp):
        with WithinTrace(trace):
            function, jvp, operands = _jvp_with_operands(function, jvp, operands)
    return _jax_process_jvp(trace, primitive, function, jvp, operands, symbolic_zeros=symbolic_zeros)


def _jvp_with_operands(
    function: WrappedFun, jvp: WrappedFun, operands: Sequence[Any]
) -> tuple[WrappedFun, WrappedFun, Sequence[Any]]:
    avals = [aval_of(one) for one in operands]
    program = program_of(function.call_wrapped, avals)

    def rule_for(zeros: tuple[bool, ...]) -> tuple[Callable[..., Any], list[Any]]:
        """Returns the rule as a function of the arrays, and their types, if some tangents are symbolic zeros."""
        tangent_avals = [aval.to_tangent_aval() for aval in avals]

        def apply(*arrays: Any) -> Any:
            given = iter(arrays[len(avals) :])
            pairs = zip(zeros, tangent_avals, strict=True)
            tangents = [_ad_util.SymbolicZero(aval) if zero else next(given) for zero, aval in pairs]
            reset_stores(jvp)
            return jvp.call_wrapped(*arrays[: len(avals)], *tangents)

        kept = [aval for zero, aval in zip(zeros, tangent_avals, strict=True) if not zero]
        return apply, [*avals, *kept]

    none = (False,) * len(avals)
    rule = _traced(*rule_for(none))
    reset_stores(jvp)
    if rule is None or not rule.captured:
        return _function_after(program, 0, function), jvp, operands
    rules = {none: rule}
    captured = rule.captured
    count = len(captured)

    def jvp_with(*arrays: Any) -> Any:
        middle = len(arrays) // 2
        tangents = arrays[middle + count :]
        zeros = tuple(isinstance(one, _ad_util.SymbolicZero) for one in tangents)
        if zeros not in rules:
            rules[zeros] = _Rule(*rule_for(zeros))
        kept = [one for zero, one in zip(zeros, tangents, strict=True) if not zero]
        return rules[zeros](captured, arrays[:count], [*arrays[count:middle], *kept])

    return _function_after(program, count, function), _wrapped(jvp_with, jvp), [*_entered(captured), *operands]


# `jax.custom_vjp`


def _process_vjp(
    trace: Any,
    primitive: _extend.Primitive,
    function: WrappedFun,
    forward: WrappedFun,
    backward: WrappedFun,
    operands: Sequence[Any],
    /,
    *,
    out_trees: Callable[..., Any],
    symbolic_zeros: bool,
) -> Any:
    """Adds a `custom_vjp` call to the jaxpr that `trace` builds."""
    if _is_needed(trace, forward, backward) and not hasattr(backward.f, "call_with_accums"):
        with WithinTrace(trace):
            call = _VjpCall(function, forward, backward, operands, out_trees, symbolic_zeros)
        function, forward, backward, operands, out_trees = call.converted()
    return _jax_process_vjp(
        trace,
        primitive,
        function,
        forward,
        backward,
        operands,
        out_trees=out_trees,
        symbolic_zeros=symbolic_zeros,
    )


class _VjpCall:
    """A call of a `custom_vjp` function whose rules have been traced.

    Args:
        function: The function.
        forward: Its forward rule, whose arguments are each operand, followed by whether its derivative is needed.
        backward: Its backward rule: from residuals and cotangents of the results to cotangents of the operands.
        operands: The operands.
        out_trees: Returns the structure of the results, that of the residuals, and for each residual the position of
            the operand that it is, or None. Reads the stores of `forward`.
        symbolic_zeros: Whether the forward rule, and with it the residuals, depend on which derivatives are needed.
    """

    def __init__(
        self,
        function: WrappedFun,
        forward: WrappedFun,
        backward: WrappedFun,
        operands: Sequence[Any],
        out_trees: Callable[..., Any],
        symbolic_zeros: bool,
    ) -> None:
        self._function, self._forward, self._backward = function, forward, backward
        self._operands, self._out_trees, self._symbolic_zeros = operands, out_trees, symbolic_zeros
        self._avals = [aval_of(one) for one in operands]
        self._program = program_of(function.call_wrapped, self._avals)
        self._rule = _traced(self._forward_for((True,) * len(operands)), self._avals)
        self._pull: _Rule | None = None
        self._stored: list[Any] = []
        if self._rule is not None:
            self._stored = held_by_stores(forward)
            self._pull = _traced(backward.call_wrapped, self._pull_avals(self._rule.out_avals))
        reset_stores(forward)
        self._saved = [] if self._rule is None else self._rule.captured
        self._pulled = [] if self._pull is None else self._pull.captured
        self._count = len(self._saved) + len(self._pulled)
        self._extra = [*_entered(self._saved), *self._pulled]

    def converted(self) -> tuple[WrappedFun, WrappedFun, WrappedFun, Sequence[Any], Callable[..., Any]]:
        """Returns function, rules, operands and `out_trees` of an equal call; the tracers are its first operands."""
        function = _function_after(self._program, self._count, self._function)
        if not self._count:
            return function, self._forward, self._backward, self._operands, self._out_trees
        backward = _wrapped(self._pull_with, self._backward) if self._pulled else self._backward
        avals = [aval_of(one).to_tangent_aval() for one in self._extra]
        backward = _custom_derivatives._handle_consts_in_bwd(backward, avals)
        forward = _wrapped(self._forward_with, self._forward)
        return function, forward, backward, [*self._extra, *self._operands], self._trees

    def _forward_for(self, needed: Sequence[bool]) -> Callable[..., Any]:
        def apply(*args: Any) -> Any:
            reset_stores(self._forward)
            return self._forward.call_wrapped(*[x for pair in zip(args, needed, strict=True) for x in pair])

        return apply

    def _pull_avals(self, out_avals: Sequence[Any]) -> list[Any]:
        """Returns the types of the arguments of the backward rule."""
        _, residual_tree, forwards = self._out_trees()
        count = residual_tree.num_leaves - sum(position is not None for position in forwards)
        computed = iter(out_avals[:count])
        residuals = [next(computed) if position is None else self._avals[position] for position in forwards]
        return [*residuals, *(aval.to_tangent_aval() for aval in out_avals[count:])]

    def _forward_with(self, *args: Any) -> Any:
        values, needed = args[::2], args[1::2][self._count :]
        rule = self._rule
        if self._symbolic_zeros and not all(needed):
            rule = _Rule(self._forward_for(needed), self._avals)
        else:
            reset_stores(self._forward)
            fill_stores_with(self._forward, self._stored)
        assert rule is not None
        return rule(self._saved, values[: len(self._saved)], values[self._count :])

    def _trees(self) -> tuple[Any, Any, list[int | None]]:
        out_tree, residual_tree, forwards = self._out_trees()
        own = [None if position is None else position + self._count for position in forwards]
        total = residual_tree.num_leaves + len(self._pulled)
        return out_tree, jax.tree.structure([0] * total), [*own, *range(len(self._saved), self._count)]

    def _pull_with(self, *args: Any) -> Any:
        _, residual_tree, _ = self._out_trees()
        first = residual_tree.num_leaves
        last = first + len(self._pulled)
        own = [*args[:first], *map(_instantiated, args[last:])]
        rule = self._pull
        if self._symbolic_zeros:
            rule = _Rule(self._backward.call_wrapped, [aval_of(one) for one in own])
        assert rule is not None
        return rule(self._pulled, args[first:last], own)


_jax_process_jvp: Final[Any] = _partial_eval.DynamicJaxprTrace.process_custom_jvp_call
_jax_process_vjp: Final[Any] = _partial_eval.DynamicJaxprTrace.process_custom_vjp_call
replace("jax functions", _partial_eval.DynamicJaxprTrace, "process_custom_jvp_call", _process_jvp)
replace("jax functions", _partial_eval.DynamicJaxprTrace, "process_custom_vjp_call", _process_vjp)
