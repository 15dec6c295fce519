"""Applies linear functions with a given transpose, as one primitive that all transforms of JAX accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.extend.core as _extend
import jax.numpy as jnp
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir

from mirrored._jax.inlining import as_function
from mirrored._jax.jaxprs import ClosedJaxpr

# A linear function whose transpose is another function, not the one that JAX derives.
#
# `jax.custom_vjp` has no forward mode, and `jax.custom_derivatives.linear_call` cannot be vectorized, which
# `jax.jacrev` needs. This primitive has rules for both. As the function is linear, its JVP is the function itself.
#
# Supports JAX 0.10 to 0.12 (`jax.extend.core.Primitive`, `jax.interpreters`).

LINEAR: Final = "linear_with_transpose"
_primitive: Final = _extend.Primitive(LINEAR)
_primitive.multiple_results = True

ArrayFunction = Callable[..., Sequence[Any]]


def linear(
    function: ArrayFunction,
    transpose: ArrayFunction,
    *arrays: jax.Array,
    residuals: Sequence[jax.Array] = (),
    batch_axes: tuple[int, int] = (0, 0),
) -> list[Any]:
    """Applies a linear function, whose transpose is the function `transpose`, and returns the results.

    Args:
        function: A function from the residuals and the arrays to a list of arrays. It is linear in the arrays, and
            applies to arrays with one more dimension as well.
        transpose: The function from the residuals and the cotangents of the results to the cotangents of `arrays`.
        *arrays: The arrays.
        residuals: Arrays without derivatives, such as predicates, that both functions read. With residuals, batches
            need no property of the functions, and `batch_axes` is not used.
        batch_axes: The positions of the additional dimension in the arrays and in the results.
    """
    return list(
        _primitive.bind(
            *residuals,
            *arrays,
            call_jaxpr=jax.make_jaxpr(function)(*residuals, *arrays),
            function=function,
            transpose=transpose,
            num_residuals=len(residuals),
            batch_axes=batch_axes,
        )
    )


def _applied(*arrays: jax.Array, call_jaxpr: ClosedJaxpr, **_: object) -> list[Any]:
    return as_function(call_jaxpr)(*arrays)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], num_residuals: int, **params: Any
) -> tuple[list[Any], list[Any]]:
    params["num_residuals"] = num_residuals
    moved = [_ad.instantiate_zeros(tangent) for tangent in tangents[num_residuals:]]
    return _primitive.bind(*primals, **params), _primitive.bind(*primals[:num_residuals], *moved, **params)


def _transposed(
    cotangents: Sequence[Any], *operands: Any, transpose: ArrayFunction, num_residuals: int, **_: object
) -> list[Any]:
    moved = [_ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    return [None] * num_residuals + list(transpose(*operands[:num_residuals], *moved))


def _batched(
    operands: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    function: ArrayFunction,
    transpose: ArrayFunction,
    num_residuals: int,
    batch_axes: tuple[int, int],
    **_: object,
) -> tuple[list[Any], list[int]]:
    size = next(array.shape[dim] for array, dim in zip(operands, dims, strict=True) if dim is not None)
    place, place_of_results = (0, 0) if num_residuals else batch_axes

    def moved(array: jax.Array, dim: int | None) -> jax.Array:
        if dim is not None:
            return jnp.moveaxis(array, dim, place)
        return jnp.broadcast_to(jnp.expand_dims(array, place), (*array.shape[:place], size, *array.shape[place:]))

    moved_operands = list(map(moved, operands, dims))
    residuals, arrays = moved_operands[:num_residuals], moved_operands[num_residuals:]
    if residuals:
        function, transpose = jax.vmap(function), jax.vmap(transpose)
    results = linear(function, transpose, *arrays, residuals=residuals, batch_axes=batch_axes)
    return results, [place_of_results] * len(results)


_primitive.def_impl(_applied)
_primitive.def_abstract_eval(lambda *_, call_jaxpr, **__: list(call_jaxpr.out_avals))
_ad.primitive_jvps[_primitive] = _jvp
_ad.primitive_transposes[_primitive] = _transposed
_batching.primitive_batchers[_primitive] = _batched
_mlir.register_lowering(_primitive, _mlir.lower_fun(_applied, multiple_results=True))
