"""Probes of the configuration of cuDNN's fused attention; `tests/on_gpu` has attention on a GPU."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import mirrored  # noqa: F401  (replaces the function)
from mirrored._jax.fused_attention import deterministic_attention
from mirrored._jax.private import fused_attention_stablehlo as attention
from mirrored._jax.private import mlir


def configuration(*, is_bwd: bool) -> dict[str, Any]:
    shape = dict(batch=2, num_heads=4, seq_q=8, seq_kv=8, fmha_scale=0.5)
    layout = attention.AttentionLayout.BTNH.value
    with mlir.make_ir_context():
        dtype = mlir.dtype_to_ir_type(jnp.dtype(jnp.bfloat16))
        whole = attention.create_dot_product_attention_backend_config_base(
            **shape, dtype=dtype, mask_type=attention.MaskType.CAUSAL, layout=layout, is_bwd=is_bwd
        )
    found: dict[str, Any] = whole["cudnn_fmha_backend_config"]
    return found


@pytest.mark.parametrize("is_bwd", [False, True])
def test_attention_is_deterministic_in_bit_identical_programs(is_bwd: bool) -> None:
    usual = configuration(is_bwd=is_bwd)
    with deterministic_attention():
        inside = configuration(is_bwd=is_bwd)
    assert inside == {**usual, "force_deterministic": True}
    assert configuration(is_bwd=is_bwd) == usual, "and as before in other programs"
    assert "force_deterministic" not in usual
