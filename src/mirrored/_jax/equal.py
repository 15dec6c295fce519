"""A primitive that says: this value is the same on every device of an axis, by construction.

Serves JAX 0.10 to 0.12 (`jax.extend.core.Primitive`, `jax.interpreters`). It computes nothing. The replication check
believes it, so only collectives whose result is equal by their algorithm, though by no single operation, may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax.extend.core as _extend
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir

NAME: Final = "equal_on_all_devices"

_primitive: Final = _extend.Primitive(NAME)


def equal_on_all_devices(array: Any, axis: str) -> Any:
    """`array`, with the claim that it is the same on every device of `axis`."""
    return _primitive.bind(array, axis_name=axis)


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, axis_name: str) -> tuple[Any, Any]:
    return equal_on_all_devices(arrays[0], axis_name), dims[0]


_primitive.def_impl(lambda array, axis_name: array)
_primitive.def_abstract_eval(lambda array, axis_name: array)
_ad.deflinear2(_primitive, lambda cotangent, array, axis_name: [equal_on_all_devices(cotangent, axis_name)])
_batching.primitive_batchers[_primitive] = _batch
_mlir.register_lowering(_primitive, lambda context, array, axis_name: [array])
