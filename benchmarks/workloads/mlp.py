"""W1, W2: a multi-layer perceptron."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Mlp:
    """`sizes` of the layers, the input's first."""

    sizes: tuple[int, ...]
    terms_per_example = 1

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        parameters = {}
        for i, (n_in, n_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            parameters[f"d{i}.w"] = (rng.standard_normal((n_in, n_out)) / np.sqrt(n_in)).astype(np.float32)
            parameters[f"d{i}.b"] = np.zeros(n_out, np.float32)
        return parameters

    def examples(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((count, self.sizes[0])).astype(np.float32)
        return x, rng.integers(0, self.sizes[-1], count).astype(np.int32)

    def logits(self, ops: Any, p: Mapping[str, Any], x: Any) -> Any:
        last = len(self.sizes) - 2
        for i in range(last):
            x = ops.relu(ops.dense(x, p[f"d{i}.w"], p[f"d{i}.b"]))
        return ops.dense(x, p[f"d{last}.w"], p[f"d{last}.b"])
