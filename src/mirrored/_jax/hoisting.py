"""Makes arrays over which inner jaxprs of a traced function close constants of the function itself.

JAX keeps a concrete array over which a function given to `jit`, `scan` or `cond` closes in that function's jaxpr.
A rewrite of the outer jaxpr, such as one that gives each replica its own copy of a constant, does not find it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from mirrored._jax.closures import REBUILT, Lifted, embedded_arrays, is_opaque
from mirrored._jax.inlining import Staged, stage
from mirrored._jax.jaxprs import JaxprEqn, Literal, is_inexact, jaxprs_in
from mirrored._jax.local_collectives import at_source_of, bind_equation


def hoistable_arrays(body: Staged) -> list[Any]:
    """Returns the floating-point arrays inside of a traced function's equations that `with_hoisted` can replace."""
    return [array for eqn in body.jaxpr.eqns for array in _hoistable(eqn)]


def with_hoisted(
    body: Staged,
    wanted: Sequence[Any],
    shapes: Sequence[jax.ShapeDtypeStruct],
    axes: Sequence[tuple[str, int]],
) -> Staged:
    """Returns the traced function with embedded arrays of its equations as constants of its own.

    A jitted function that closes over such an array is inlined. What functions with custom derivatives close over stays
    where it is, since it has no derivative.

    Args:
        body: The traced function.
        wanted: The arrays, of those that `hoistable_arrays` returns.
        shapes: The shapes and dtypes of the function's inputs.
        axes: The mesh axes over which it may reduce, with their sizes.
    """
    arrays = {id(array): array for array in wanted}
    inside = [[array for array in _hoistable(eqn) if id(array) in arrays] for eqn in body.jaxpr.eqns]
    own = [jax.ShapeDtypeStruct(one.shape, one.dtype, weak_type=one.weak_type) for one in arrays.values()]

    def flat(*inputs: Any) -> list[Any]:
        instead = dict(zip(arrays, inputs, strict=False))
        return _applied(body, inside, inputs[len(arrays) :], instead)

    staged = stage(flat, [*own, *shapes], axes=axes)
    return stage(lambda *inputs: staged(staged.constants, [*arrays.values(), *inputs]), shapes, axes=axes)


def _applied(body: Staged, inside: Sequence[list[Any]], inputs: Sequence[Any], instead: Mapping[int, Any]) -> list[Any]:
    jaxpr = body.jaxpr
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*body.constants, *inputs), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn, arrays in zip(jaxpr.eqns, inside, strict=True):
        operands = [read(atom) for atom in eqn.invars]
        if arrays:
            with at_source_of(eqn), eqn.ctx.manager:
                lifted = Lifted(eqn.primitive, eqn.params, arrays)
                results = lifted(*(instead[id(array)] for array in arrays), *operands)
        else:
            results = bind_equation(eqn, operands)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _hoistable(eqn: JaxprEqn) -> list[Any]:
    """Returns the arrays in an equation's jaxprs that `Lifted` can make operands of the equation."""
    arrays = embedded_arrays(eqn.params)
    if not arrays or eqn.primitive not in REBUILT:
        return []
    kept = {id(array) for array in _in_others(eqn)}
    return [array for array in arrays if id(array) not in kept and is_inexact(array)]


def _in_others(eqn: JaxprEqn) -> Iterator[Any]:
    """Yields the arrays in the jaxprs of inner equations that `Lifted` cannot rebuild."""
    for jaxpr in jaxprs_in(eqn.params):
        for inner in jaxpr.eqns:
            if is_opaque(inner.primitive) or not (found := embedded_arrays(inner.params)):
                continue
            yield from _in_others(inner) if inner.primitive in REBUILT else found
