"""W4, W5: a causal transformer, normalised before each block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Transformer:
    """`dtype` is the one it computes in; parameters are float32. `fused` takes the contender's fused attention."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    length: int = 64
    vocabulary: int = 1000
    dtype: str = "float32"
    fused: bool = False

    @property
    def terms_per_example(self) -> int:
        return self.length

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        parameters: dict[str, np.ndarray] = {}

        def dense(name: str, n_in: int, n_out: int) -> None:
            parameters[f"{name}.w"] = (rng.standard_normal((n_in, n_out)) / np.sqrt(n_in)).astype(np.float32)
            parameters[f"{name}.b"] = np.zeros(n_out, np.float32)

        def norm(name: str) -> None:
            parameters[f"{name}.g"] = np.ones(self.width, np.float32)
            parameters[f"{name}.b"] = np.zeros(self.width, np.float32)

        for name, rows in (("words", self.vocabulary), ("places", self.length)):
            parameters[name] = (rng.standard_normal((rows, self.width)) / np.sqrt(self.width)).astype(np.float32)
        for i in range(self.layers):
            norm(f"l{i}.n1")
            dense(f"l{i}.qkv", self.width, 3 * self.width)
            dense(f"l{i}.o", self.width, self.width)
            norm(f"l{i}.n2")
            dense(f"l{i}.up", self.width, 4 * self.width)
            dense(f"l{i}.down", 4 * self.width, self.width)
        norm("last")
        dense("out", self.width, self.vocabulary)
        return parameters

    def examples(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        words = rng.integers(0, self.vocabulary, (count, self.length + 1)).astype(np.int32)
        return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])

    def logits(self, ops: Any, p: Mapping[str, Any], x: Any) -> Any:
        if self.dtype != "float32":
            p = {name: ops.cast(value, self.dtype) for name, value in p.items()}
        attention = ops.fused_attention if self.fused else ops.attention
        z = ops.look_up(p["words"], x) + p["places"]
        for i in range(self.layers):
            y = ops.norm(z, p[f"l{i}.n1.g"], p[f"l{i}.n1.b"])
            y = attention(ops.dense(y, p[f"l{i}.qkv.w"], p[f"l{i}.qkv.b"]), self.heads)
            z = z + ops.dense(y, p[f"l{i}.o.w"], p[f"l{i}.o.b"])
            y = ops.norm(z, p[f"l{i}.n2.g"], p[f"l{i}.n2.b"])
            y = ops.gelu(ops.dense(y, p[f"l{i}.up.w"], p[f"l{i}.up.b"]))
            z = z + ops.dense(y, p[f"l{i}.down.w"], p[f"l{i}.down.b"])
        return ops.dense(ops.norm(z, p["last.g"], p["last.b"]), p["out.w"], p["out.b"])
