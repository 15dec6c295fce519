"""The specification that every contender follows: workloads, initial weights, data, optimizer."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
from workloads.convnet import Convnet
from workloads.mlp import Mlp
from workloads.transformer import Transformer

LEARNING_RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
"""Adam as in TensorFlow: the learning rate is corrected for bias, epsilon is not."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A network at a global batch size.

    Attributes:
        title: A description.
        network: Its parameters, examples and logits.
        batch: Examples per step, over all replicas.
        target: The maximum cost of a step, in steps of hand-written JAX.
        devices: The kind of device it is for.
        decay: AdamW's weight decay; 0 is Adam.
    """

    title: str
    network: Any
    batch: int
    target: float
    devices: str = "any"
    decay: float = 0.0

    @property
    def terms(self) -> int:
        """The number of terms in the mean of the loss."""
        return self.batch * int(self.network.terms_per_example)

    def parameters(self) -> dict[str, np.ndarray]:
        """Returns the same initial weights for every contender."""
        return self.network.parameters(np.random.default_rng(0))  # type: ignore[no-any-return]

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the same global batch for every contender."""
        return self.network.examples(np.random.default_rng(1), self.batch)  # type: ignore[no-any-return]


WORKLOADS = {
    "W1": Workload("MLP 784-128-10 at 64", Mlp((784, 128, 10)), 64, 1.05),
    "W2": Workload("MLP 784-1024-1024-10 at 512", Mlp((784, 1024, 1024, 10)), 512, 1.02),
    "W3": Workload("convnet 32/64/128 on 32x32x3 at 64", Convnet(), 64, 1.02),
    "W4": Workload("transformer, 2 layers of 128, at 16 x 64", Transformer(), 16, 1.02),
    # W4 with a batch that 64 replicas divide, for the first step against the number of replicas.
    "W4b": Workload("transformer, 2 layers of 128, at 64 x 64", Transformer(), 64, 1.1),
    "W5": Workload(
        "GPT-2 124M in bfloat16, at 16 x 512, AdamW",
        Transformer(12, 768, 12, 512, 50257, dtype="bfloat16", fused=True),
        16,
        1.02,
        devices="GPU",
        decay=0.1,
    ),
    # The public setting of GPT-2 124M; the batch is the largest that fits: "W5p@96".
    "W5p": Workload(
        "GPT-2 124M in bfloat16, length 1024, vocabulary padded to 50,304, AdamW",
        Transformer(12, 768, 12, 1024, 50304, dtype="bfloat16", fused=True),
        16,
        1.02,
        devices="GPU",
        decay=0.1,
    ),
}
ATTENTION_VARIABLE = "BENCH_ATTENTION"
"""JAX's implementation of fused attention: ``cudnn`` or ``xla``. Default: cuDNN's on a GPU."""
TINY_VARIABLE = "BENCH_TINY"
"""Environment variable: if set, `workload` returns tiny networks, for the dry run of the GPU benchmarks on a CPU."""
_TINY = {
    "W1": (Mlp((6, 4, 3)), 8),
    "W2": (Mlp((6, 4, 4, 3)), 8),
    "W3": (Convnet((3, 2, 2), (1, 2), side=4, classes=3), 8),
    "W4": (Transformer(1, 16, 2, 8, 11), 8),
    "W4b": (Transformer(1, 16, 2, 8, 11), 8),
    "W5": (Transformer(1, 16, 2, 8, 11, dtype="bfloat16", fused=True), 16),
    "W5p": (Transformer(1, 16, 2, 8, 12, dtype="bfloat16", fused=True), 16),
}


def workload(name: str) -> Workload:
    """Returns the workload of that name; ``"W5p@96"`` is one at another batch size."""
    name, _, batch = name.partition("@")
    found = WORKLOADS[name]
    if os.environ.get(TINY_VARIABLE):
        network, size = _TINY[name]
        found = dataclasses.replace(found, network=network, batch=size)
    return dataclasses.replace(found, batch=int(batch)) if batch else found


CHAIN = 200
"""Number of operations in the eager chain: sin(tanh(z * w + b)), repeated."""


def chain(z: Any, w: Any, b: Any, sin: Any, tanh: Any) -> Any:
    """Computes the eager chain."""
    for _ in range(CHAIN // 4):
        z = sin(tanh(z * w + b))
    return z
