"""A primitive that asserts that a value is replicated: equal on every device of an axis, by construction.

Supports JAX 0.10 to 0.12 (`jax.extend.core.Primitive`, `jax.interpreters`). The primitive is the identity. The
replication check trusts it, so only collectives may use it whose algorithm, rather than a single operation, guarantees
equal results.
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
    """Returns `array`, marked as equal on every device of `axis`."""
    return _primitive.bind(array, axis_name=axis)


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, axis_name: str) -> tuple[Any, Any]:
    return equal_on_all_devices(arrays[0], axis_name), dims[0]


_primitive.def_impl(lambda array, axis_name: array)
_primitive.def_abstract_eval(lambda array, axis_name: array)
_ad.deflinear2(_primitive, lambda cotangent, array, axis_name: [equal_on_all_devices(cotangent, axis_name)])
_batching.primitive_batchers[_primitive] = _batch
_mlir.register_lowering(_primitive, lambda context, array, axis_name: [array])
