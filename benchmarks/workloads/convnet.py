"""W3: convolutions over 32x32 colour images, two of them strided."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Convnet:
    """3x3 convolutions with these channels (the input's first) and strides; mean over pixels; a dense layer."""

    channels: tuple[int, ...] = (3, 32, 64, 128)
    strides: tuple[int, ...] = (1, 2, 2)
    side: int = 32
    classes: int = 10
    terms_per_example = 1

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        parameters = {}
        for i, (n_in, n_out) in enumerate(zip(self.channels, self.channels[1:], strict=False)):
            parameters[f"c{i}.w"] = (rng.standard_normal((3, 3, n_in, n_out)) / np.sqrt(9 * n_in)).astype(np.float32)
            parameters[f"c{i}.b"] = np.zeros(n_out, np.float32)
        last = self.channels[-1]
        parameters["out.w"] = (rng.standard_normal((last, self.classes)) / np.sqrt(last)).astype(np.float32)
        parameters["out.b"] = np.zeros(self.classes, np.float32)
        return parameters

    def examples(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((count, self.side, self.side, self.channels[0])).astype(np.float32)
        return x, rng.integers(0, self.classes, count).astype(np.int32)

    def logits(self, ops: Any, p: Mapping[str, Any], x: Any) -> Any:
        x = ops.images(x)
        for i, stride in enumerate(self.strides):
            x = ops.relu(ops.conv(x, p[f"c{i}.w"], p[f"c{i}.b"], stride))
        return ops.dense(ops.mean_of_pixels(x), p["out.w"], p["out.b"])
