"""Analyzes which inputs an output of a jaxpr depends on, and evaluates selected outputs.

Supports JAX 0.10 to 0.12: `ClosedJaxpr` has `consts` in all of them; an equation is applied with `get_bind_params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax._src import core as _core

from mirrored._jax.concrete import evaluate
from mirrored._jax.jaxprs import Literal


def dependencies(closed: Any) -> list[frozenset[int]]:
    """Returns, for each output of a closed jaxpr, the inputs on which it depends.

    All outputs of an equation count as dependent on all of its inputs.
    """
    jaxpr = closed.jaxpr
    sources: dict[Any, frozenset[int]] = {one: frozenset([i]) for i, one in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        combined = frozenset[int]().union(*(_of(one, sources) for one in equation.invars))
        sources.update((one, combined) for one in equation.outvars)
    return [_of(one, sources) for one in jaxpr.outvars]


def _of(atom: Any, sources: Mapping[Any, frozenset[int]]) -> frozenset[int]:
    return frozenset() if isinstance(atom, Literal) else sources.get(atom, frozenset())


def evaluate_outputs(closed: Any, inputs: Mapping[int, Any], wanted: Sequence[int]) -> list[Any]:
    """Computes selected outputs of a closed jaxpr, given the inputs on which they depend.

    Raises:
        NotConstant: An output depends on a closed-over value that is unknown during tracing.
    """
    jaxpr = closed.jaxpr
    needed = {jaxpr.outvars[i] for i in wanted if not isinstance(jaxpr.outvars[i], Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            equations.append(equation)
            needed.update(one for one in equation.invars if not isinstance(one, Literal))
    known = {jaxpr.invars[i]: value for i, value in inputs.items()}
    pairs = zip(jaxpr.constvars, closed.consts, strict=True)
    known.update((one, evaluate(value)) for one, value in pairs if one in needed)
    with _core.eval_context():
        for equation in reversed(equations):
            _apply(equation, known)
    return [_value(jaxpr.outvars[i], known) for i in wanted]


def _apply(equation: Any, known: dict[Any, Any]) -> None:
    params = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*(_value(one, known) for one in equation.invars), **params)
    outputs = outputs if equation.primitive.multiple_results else [outputs]
    known.update(zip(equation.outvars, outputs, strict=True))


def _value(atom: Any, known: Mapping[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]
