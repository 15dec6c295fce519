"""A small training on virtual replicas of one device, for the tests that need a GPU; tiny where they run on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr

ON_GPU = jax.default_backend() == "gpu"
WIDTH, BATCH = (512, 256) if ON_GPU else (8, 16)
"""Sizes of the network and of the global batch, which 8 replicas divide."""
REPLICAS = 8 if ON_GPU else 4
"""Virtual replicas on the one device."""


def strategy_of(replicas: int, **options: Any) -> mr.MirroredStrategy:
    """So many replicas, all on the first device."""
    return mr.MirroredStrategy(jax.devices()[:1], num_replicas=replicas, **options)


def examples() -> tuple[np.ndarray, np.ndarray]:
    """The global batch."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    return x, np.tanh(x[:, :4]) - 0.5


class Training:
    """Two layers, Adam, and a step that is the same on any number of replicas.

    Args:
        replicas: How many, on one device.
        compiled: Whether the step is a compiled function.
        scale: Of the first weights.
    """

    def __init__(self, replicas: int, *, compiled: bool = True, scale: float = 1.0, **options: Any) -> None:
        self.strategy = strategy_of(replicas, **options)
        rng = np.random.default_rng(0)
        with self.strategy.scope():
            self.w = mr.Variable(scale * rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5, name="w")
            self.v = mr.Variable(scale * rng.standard_normal((WIDTH, 4)).astype(np.float32) / WIDTH**0.5, name="v")
            self.optimizer = mr.optimizers.Adam(1e-2)
        share = BATCH // replicas

        def shares(values: np.ndarray) -> Any:
            return self.strategy.distribute_values_from_function(
                lambda c: values[c.replica_id_in_sync_group * share :][:share]
            )

        self.batch = tuple(shares(values) for values in examples())
        self._step = mr.function(self._all_replicas) if compiled else self._all_replicas

    def loss(self, x: Any, y: Any) -> Any:
        """The replica's part of the mean over the global batch."""
        return mr.losses.average_loss((((jnp.tanh(x @ self.w) @ self.v) - y) ** 2).mean(-1))

    def _on_replica(self, x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = self.loss(x, y)
        variables = [self.w, self.v]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def _all_replicas(self, x: Any, y: Any) -> Any:
        return self.strategy.reduce(mr.ReduceOp.SUM, self.strategy.run(self._on_replica, args=(x, y)), axis=None)

    def train(self, steps: int) -> list[float]:
        """So many steps; their losses."""
        return [float(self._step(*self.batch)) for _ in range(steps)]

    def state(self) -> list[np.ndarray]:
        """The weights and the optimizer's slots."""
        return [variable.numpy() for variable in (self.w, self.v, *self.optimizer.variables)]
