"""The identity on an array, without the mesh in its type.

The type of a result of `shard_map` names its mesh, and JAX refuses operations on arrays of different meshes. The body
of another run is traced for one device, without a mesh. If the body closes over such a result, its derivative would
combine arrays of both types.

Supports JAX 0.10 to 0.12: the registries of rules for primitives.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_unplaced_p = Primitive("unplaced")  # type: ignore[no-untyped-call]


def unplaced(array: jax.Array) -> Any:
    """Returns an array of the same value whose type has no mesh; differentiable, without effect in a program."""
    return _unplaced_p.bind(array)


def _abstract(aval: jax.core.ShapedArray) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


_unplaced_p.def_impl(lambda array: array)
_unplaced_p.def_abstract_eval(_abstract)
ad.deflinear2(_unplaced_p, lambda cotangent, _: [cotangent])
batching.defvectorized(_unplaced_p)
mlir.register_lowering(_unplaced_p, lambda _, array: [array])
