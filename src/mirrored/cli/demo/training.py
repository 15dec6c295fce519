"""The demo's training loop, with a strategy, a compiled training step, a gradient tape and an optimizer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import mirrored as mr
from mirrored.cli.demo.convnet import ConvNet
from mirrored.cli.demo.digits import Batches, Examples
from mirrored.values.distributed_values import DistributedValues

# The history of a training run, for the report.


@dataclasses.dataclass
class History:
    """The loss of every step and the duration of every epoch of a training run.

    Attributes:
        losses: The loss of each step.
        epoch_seconds: The duration of each epoch.
        images_per_epoch: The number of training images.
    """

    images_per_epoch: int
    losses: list[float] = dataclasses.field(default_factory=list)
    epoch_seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        """The number of training steps in one epoch."""
        return len(self.losses) // max(1, len(self.epoch_seconds))

    @property
    def images_per_second(self) -> float:
        """The number of images trained per second, without the first epoch, which includes compilation."""
        seconds = self.epoch_seconds[1:] or self.epoch_seconds
        return self.images_per_epoch * len(seconds) / sum(seconds)


BATCH_SIZE = 64
SEED = 1


class Trainer:
    """A model and an optimizer that are trained under a strategy.

    Args:
        strategy: The strategy that runs the replicas.
    """

    def __init__(self, strategy: mr.MirroredStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = ConvNet(SEED)
            self.optimizer = mr.optimizers.Adam(2e-3)
        self.step: Callable[..., Any] = mr.function(self._step)
        self.predict: Callable[..., Any] = mr.function(self._predict)

    def _step(self, batch: tuple[DistributedValues | jax.Array, DistributedValues | jax.Array]) -> Any:
        """Updates the model by one global batch, in cross-replica context."""
        losses = self.strategy.run(self._replica_step, args=batch)
        return self.strategy.reduce(mr.ReduceOp.SUM, losses, axis=None)

    def _replica_step(self, images: jax.Array, labels: jax.Array) -> Any:
        """Updates the model by the sum of all replicas' gradients, and returns the loss of one replica's batch."""
        variables = self.model.variables
        with mr.GradientTape() as tape:
            scores = self.model(images, self._dropout_key())
            loss = mr.losses.average_loss(optax.softmax_cross_entropy_with_integer_labels(scores, labels))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def _dropout_key(self) -> Any:
        """Returns a PRNG key that depends on seed, step and replica, but not on the device."""
        replica: Any = mr.get_replica_context()
        at_step = jax.random.fold_in(jax.random.key(SEED), self.optimizer.iterations.read_value())
        return jax.random.fold_in(at_step, replica.replica_id_in_sync_group)

    def _predict(self, images: DistributedValues | jax.Array, is_real: DistributedValues | jax.Array) -> Any:
        """Predicts the digits of a global batch, in order; also returns whether each image is real (not padding)."""
        digits = self.strategy.run(lambda batch: self.model(batch).argmax(axis=-1), args=(images,))
        return self.strategy.gather(digits, axis=0), self.strategy.gather(is_real, axis=0)

    def train(self, examples: Examples, epochs: int, on_step: Callable[[int, float, float], None]) -> History:
        """Trains the model for some epochs, and returns the losses and times.

        Args:
            examples: The training examples.
            epochs: The number of epochs.
            on_step: Called after each step with the epoch (from 1), the loss, and the images per second of this epoch.
        """
        history = History(len(examples))
        batches = self.strategy.experimental_distribute_dataset(Batches(examples, BATCH_SIZE, seed=SEED))
        for epoch in range(1, epochs + 1):
            started, first = time.perf_counter(), len(history.losses)
            for batch in batches:
                history.losses.append(float(self.step(batch)))
                seen = min((len(history.losses) - first) * BATCH_SIZE, len(examples))
                on_step(epoch, history.losses[-1], seen / (time.perf_counter() - started))
            history.epoch_seconds.append(time.perf_counter() - started)
        return history

    def predict_all(self, examples: Examples) -> np.ndarray:
        """Predicts the digits of images with all replicas, and returns the digits in the order of the images."""
        padding = mr.data.InputOptions(last_batch="pad")
        batches = self.strategy.experimental_distribute_dataset(Batches(examples, BATCH_SIZE), padding)
        answers = [self.predict(images, is_real) for (images, _), is_real in batches]
        return np.concatenate([np.asarray(digits)[np.asarray(is_real)] for digits, is_real in answers])
