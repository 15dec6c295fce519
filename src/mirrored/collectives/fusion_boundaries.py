"""Borders that no compiler pass crosses, so that a sum has the same bits wherever it is computed.

A compiler contracts a multiplication and the addition that follows it into one operation with one rounding, if it
puts both into one kernel; whether it does depends on everything around. A conditional with a predicate known only at
run time is its own computation: its operands and results are buffers, and nothing is fused across.
`optimization_barrier` is not enough: it is taken out before fusion. An exclusive-or of the bits with a run-time zero
holds on the side of the operands, but the kernel that reads the result is then another one than where a collective
wrote it, and may round differently *(seen: momentum updates)*.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def opaque_false(array: Any) -> Any:
    """``bool[]``, False whatever `array` holds, which no compiler knows: e to a negative power is not above 2."""
    first = jnp.real(jnp.ravel(array)[0]).astype(jnp.float32)
    return jnp.exp(-jnp.abs(first)) > 2.0


def isolate_lists(
    function: Callable[[Any], Sequence[Any]], operands: Sequence[Sequence[Any]], results_per_list: int
) -> list[Any]:
    """`function` of `operands`, compiled for itself.

    Args:
        function: From lists of arrays of one shape and dtype to a flat list of results, so many for each list, each
            like its arrays. Eager calls with the same function object share one compiled program.
        operands: At least one list; the first one's first array is not empty.
        results_per_list: How many results each list has.
    """
    otherwise = _firsts(results_per_list)
    return list(lax.cond(opaque_false(operands[0][0]), otherwise, function, [list(arrays) for arrays in operands]))


@functools.cache
def _firsts(results_per_list: int) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
    """The branch that never runs, one function per number: an eager `cond` over new functions is compiled anew."""

    def otherwise(lists: Sequence[Sequence[Any]]) -> list[Any]:
        return [arrays[0] for arrays in lists for _ in range(results_per_list)]

    return otherwise


def isolate(function: Callable[[Any], list[Any]], operands: Sequence[Any]) -> list[Any]:
    """`function` of a list of arrays to a list of any others, compiled for itself.

    Args:
        function: From the list to its results.
        operands: The first one is not empty.
    """
    results = jax.eval_shape(function, list(operands))

    def otherwise(_: Any) -> list[Any]:
        return [jnp.zeros(result.shape, result.dtype) for result in results]

    return list(lax.cond(opaque_false(operands[0]), otherwise, function, list(operands)))
