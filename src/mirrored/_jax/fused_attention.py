"""Lets bit-identical programs contain several fused attentions of cuDNN.

With `xla_gpu_deterministic_ops`, XLA sets `force_deterministic` in the configuration of the backward attention while it
builds the attention's cuDNN graph, and then stores the graph by its configuration. A later attention with the same
configuration takes the stored graph without that change, so XLA looks up a graph that it does not have: the program
ends in ``IndexError: absl::container_internal::raw_hash_map<>::at``. The virtual replicas of one device have equal
attentions. Here the configuration has `force_deterministic` from the beginning, which XLA then does not change.

Supports JAX 0.10 to 0.12. Source: `CuDnnCustomCallCompiler` in XLA's `cudnn_custom_call_compiler.cc`. Verified on an
NVIDIA H200 with JAX 0.11.2: equal gradients for 8, 4, 2 and 1 replicas per device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

from mirrored._blocks import setting
from mirrored._jax.private import fused_attention_stablehlo as _attention

_NAME: Final = "create_dot_product_attention_backend_config_base"
_deterministic: Final = ContextVar("deterministic", default=False)


def deterministic_attention() -> AbstractContextManager[None]:
    """Context manager that sets `force_deterministic` for every cuDNN fused attention that JAX lowers in its block.

    It is for programs that are compiled with `xla_gpu_deterministic_ops`.
    """
    return setting(_deterministic, True)


def connect_fused_attention() -> None:
    """Patches JAX's configuration of cuDNN's fused attention, so that `deterministic_attention` takes effect."""
    create: Callable[..., dict[str, dict[str, object]]] = getattr(_attention, _NAME)

    @functools.wraps(create)
    def create_deterministic(*args: object, **kwargs: object) -> dict[str, dict[str, object]]:
        configuration = create(*args, **kwargs)
        if _deterministic.get():
            configuration["cudnn_fmha_backend_config"]["force_deterministic"] = True
        return configuration

    setattr(_attention, _NAME, create_deterministic)
