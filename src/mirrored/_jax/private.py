"""The only module that imports private modules of JAX (`jax._src`).

A shim takes the modules that it needs from here, and states in its own notes the JAX versions that it supports and what
it relies on. `tests/_jax/test_private.py` checks that the installed JAX has every name that a shim uses.
"""

from jax._src import (
    ad_util,
    api_util,
    array,
    clusters,
    compiler,
    config,
    core,
    custom_derivatives,
    debugging,
    distributed,
    dtypes,
    effects,
    linear_util,
    mesh,
    shard_map,
    source_info_util,
    traceback_util,
    util,
    xla_bridge,
)
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.interpreters import ad, mlir, partial_eval, pxla
from jax._src.lax import lax as lax_operations
from jax._src.lib import _jax as jaxlib  # type: ignore[attr-defined]
from jax._src.lib import utils as lib_utils  # type: ignore[attr-defined]
from jax._src.lib.mlir.dialects import hlo  # type: ignore[attr-defined]
from jax._src.numpy import array_methods, indexing
from jax._src.state import types as state_types

__all__ = [
    "ad",
    "ad_util",
    "api_util",
    "array",
    "array_methods",
    "clusters",
    "compiler",
    "config",
    "core",
    "custom_derivatives",
    "debugging",
    "distributed",
    "dtypes",
    "effects",
    "fused_attention_stablehlo",
    "hlo",
    "indexing",
    "jaxlib",
    "lax_operations",
    "lib_utils",
    "linear_util",
    "mesh",
    "mlir",
    "partial_eval",
    "pxla",
    "shard_map",
    "source_info_util",
    "state_types",
    "traceback_util",
    "util",
    "xla_bridge",
]
