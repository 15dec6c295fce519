"""A small training run, the same for any strategy: losses, weights, and how many examples it has seen."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint

EXAMPLES = 37


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 8)).astype(np.float32)
    return x, x @ rng.normal(size=(8,)).astype(np.float32)


class Run:
    """A model, an optimizer and data, on a strategy."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        rng = np.random.default_rng(1)
        with strategy.scope():
            self.w1 = mr.Variable(0.3 * rng.normal(size=(8, 16)).astype(np.float32), name="w1")
            self.b1 = mr.Variable(np.zeros(16, np.float32), name="b1")
            self.w2 = mr.Variable(0.3 * rng.normal(size=(16,)).astype(np.float32), name="w2")
            self.seen = mr.Variable(
                0.0,
                name="seen",
                synchronization=mr.VariableSynchronization.ON_READ,
                aggregation=mr.VariableAggregation.SUM,
            )
            self.optimizer = mr.optimizers.Adam(0.01)
        self.dataset = mr.data.Dataset.from_tensor_slices(data()).shuffle(EXAMPLES, seed=3).batch(8)

    @property
    def variables(self) -> list[Any]:
        return [self.w1, self.b1, self.w2]

    def replica(self, batch: Any) -> Any:
        x, y, mask = (*batch[0], batch[1]) if isinstance(batch[0], tuple) else (*batch, None)
        with mr.GradientTape() as tape:
            predicted = jnp.tanh(x @ self.w1.read_value() + self.b1.read_value()) @ self.w2.read_value()
            errors = (predicted - y) ** 2
            loss = jnp.sum(errors if mask is None else errors * mask) / 8.0
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.variables), self.variables, strict=True))
        self.seen.assign_add(float(x.shape[0]) if mask is None else jnp.sum(mask.astype(jnp.float32)))
        return loss

    def step(self, batch: Any) -> Any:
        return self.strategy.reduce("SUM", self.strategy.run(self.replica, args=(batch,)), axis=None)

    def train(self, epochs: int, *, last_batch: str = "split", compiled: bool = True) -> list[float]:
        """The loss of each step."""
        options = mr.data.InputOptions(last_batch=last_batch)
        distributed = self.strategy.experimental_distribute_dataset(self.dataset, options)

        run = mr.function(self.step) if compiled else self.step
        return [float(run(batch)) for _ in range(epochs) for batch in distributed]

    def outcome(self, losses: list[float]) -> dict[str, Any]:
        bits = b"".join(variable.numpy().tobytes() for variable in self.variables)
        return {"losses": losses, "bits": hashlib.sha256(bits).hexdigest(), "seen": float(self.seen.numpy())}


WAYS = {"padded": ("pad", True), "uneven": ("split", True), "eager": ("split", False)}


def outcomes(strategy: Any, *ways: str) -> dict[str, Any]:
    """Training in these ways, or all."""
    found = {}
    for name in ways or WAYS:
        last_batch, compiled = WAYS[name]
        run = Run(strategy)
        found[name] = run.outcome(run.train(1 if name == "eager" else 2, last_batch=last_batch, compiled=compiled))
    return found


_LEFT_AFTER = 3


class Midway:
    """Training that is left in the middle of an epoch, and gone on with."""

    def __init__(self, strategy: Any) -> None:
        self.run = Run(strategy)
        options = mr.data.InputOptions(last_batch="pad")
        self.iterator = iter(strategy.experimental_distribute_dataset(self.run.dataset, options))
        self.step = mr.function(self.run.step)
        self.checkpoint = Checkpoint(
            variables=self.run.variables, optimizer=self.run.optimizer, seen=self.run.seen, iterator=self.iterator
        )

    def leave(self, path: Path) -> None:
        """Trains into the middle of an epoch, and saves."""
        for _ in range(_LEFT_AFTER):
            self.step(next(self.iterator))
        self.checkpoint.write(path)

    def go_on(self, path: Path) -> dict[str, Any]:
        """The rest of the epoch."""
        self.checkpoint.read(path).assert_consumed()
        return self.run.outcome([float(self.step(batch)) for batch in self.iterator])


def several_per_call(strategy: Any) -> dict[str, Any]:
    """The full batches of an epoch, two steps per call."""
    run = Run(strategy)
    step = mr.function(run.step, steps_per_call=2)
    batches = [(batch,) for batch in strategy.experimental_distribute_dataset(run.dataset)]
    return run.outcome([float(loss) for start in (0, 2) for loss in step(batches[start : start + 2])])
