"""The networks' operations in JAX."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from spec import ATTENTION_VARIABLE

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def dense(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


relu = jax.nn.relu


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def images(x: Any) -> Any:
    return x


def conv(x: Any, w: Any, b: Any, stride: int) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=_LAYOUT) + b


def mean_of_pixels(x: Any) -> Any:
    return x.mean((1, 2))


def norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * g + b


def look_up(table: Any, ids: Any) -> Any:
    return table[ids]


def cast(x: Any, dtype: str) -> Any:
    return x.astype(dtype)


def attention(qkv: Any, heads: int) -> Any:
    length, width = qkv.shape[-2], qkv.shape[-1] // 3
    q, k, v = (
        part.reshape(-1, length, heads, width // heads).transpose(0, 2, 1, 3) for part in jnp.split(qkv, 3, axis=-1)
    )
    mask = jnp.where(jnp.tril(jnp.ones((length, length), bool)), 0.0, -1e9).astype(qkv.dtype)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / (width // heads) ** 0.5 + mask)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(-1, length, width)


def fused_attention(qkv: Any, heads: int) -> Any:
    """Causal attention as one operation, by cuDNN on a GPU."""
    length, width = qkv.shape[-2], qkv.shape[-1] // 3
    q, k, v = (part.reshape(-1, length, heads, width // heads) for part in jnp.split(qkv, 3, axis=-1))
    chosen: Any = os.environ.get(ATTENTION_VARIABLE) or ("cudnn" if jax.default_backend() == "gpu" else "xla")
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=chosen).reshape(-1, length, width)


def loss(logits: Any, y: Any) -> Any:
    """The sum of the cross-entropies."""
    logp = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logp, y[..., None], -1).sum()
