"""A small model with an optimizer, on any number of replicas, for the tests of checkpoints."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import mirrored as mr


class Model:
    def __init__(self, scale: float = 1.0) -> None:
        self.units = 2
        self.kernel = mr.Variable(jnp.arange(6.0).reshape(3, 2) * scale, name="kernel")
        self.layers = [mr.Variable(jnp.ones(2) * scale, name="bias")]

    @property
    def variables(self) -> list[mr.Variable]:
        return [self.kernel, *self.layers]


class Training:
    """A strategy, a model and an optimizer, and a step that is the same on any number of replicas."""

    def __init__(self, replicas: int, *, scale: float = 1.0, optimizer=None) -> None:
        self.strategy = mr.MirroredStrategy(jax.devices()[:replicas], deterministic=False)
        with self.strategy.scope():
            self.model = Model(scale)
            self.optimizer = mr.optimizers.Adam(0.1) if optimizer is None else optimizer()

    def step(self) -> None:
        def replica_step() -> None:
            with mr.GradientTape() as tape:
                y = jnp.ones((1, 3)) @ self.model.kernel.read_value() + self.model.layers[0].read_value()
                loss = jnp.sum(y**2) / self.strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, self.model.variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.variables, strict=True))

        self.strategy.run(replica_step)

    def state(self) -> list:
        return [variable.numpy() for variable in [*self.model.variables, *self.optimizer.variables]]
