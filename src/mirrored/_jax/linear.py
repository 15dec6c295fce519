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
    function: ArrayFunction, transpose: ArrayFunction, *arrays: jax.Array, batch_axes: tuple[int, int] = (0, 0)
) -> list[Any]:
    """Applies a linear function, whose transpose is the function `transpose`, and returns the results.

    Args:
        function: A function from arrays to a list of arrays. It applies to arrays with one more dimension as well.
        transpose: The function from the cotangents of the results to those of `arrays`.
        *arrays: The arrays.
        batch_axes: The positions of the additional dimension in the arrays and in the results.
    """
    jaxpr = jax.make_jaxpr(function)(*arrays)
    results = _primitive.bind(*arrays, call_jaxpr=jaxpr, function=function, transpose=transpose, batch_axes=batch_axes)
    return list(results)


def _applied(*arrays: jax.Array, call_jaxpr: ClosedJaxpr, **_: object) -> list[Any]:
    return as_function(call_jaxpr)(*arrays)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    moved = [_ad.instantiate_zeros(tangent) for tangent in tangents]
    return _primitive.bind(*primals, **params), _primitive.bind(*moved, **params)


def _transposed(cotangents: Sequence[Any], *_: object, transpose: ArrayFunction, **__: object) -> Sequence[Any]:
    return transpose(*[_ad.instantiate_zeros(cotangent) for cotangent in cotangents])


def _batched(
    arrays: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    function: ArrayFunction,
    transpose: ArrayFunction,
    batch_axes: tuple[int, int],
    **_: object,
) -> tuple[list[Any], list[int]]:
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    place, place_of_results = batch_axes

    def moved(array: jax.Array, dim: int | None) -> jax.Array:
        if dim is not None:
            return jnp.moveaxis(array, dim, place)
        return jnp.broadcast_to(jnp.expand_dims(array, place), (*array.shape[:place], size, *array.shape[place:]))

    results = linear(function, transpose, *map(moved, arrays, dims), batch_axes=batch_axes)
    return results, [place_of_results] * len(results)


_primitive.def_impl(_applied)
_primitive.def_abstract_eval(lambda *_, call_jaxpr, **__: list(call_jaxpr.out_avals))
_ad.primitive_jvps[_primitive] = _jvp
_ad.primitive_transposes[_primitive] = _transposed
_batching.primitive_batchers[_primitive] = _batched
_mlir.register_lowering(_primitive, _mlir.lower_fun(_applied, multiple_results=True))
