"""The update paths: ten ways to write the same training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState

import mirrored as mr
from guarantees.problem import BATCH, MOMENTUM, RATE, data, initial, losses, predictions
from mirrored.integrations.flax.holding import held
from mirrored.integrations.keras import keras


def nothing() -> None:
    """The hook of a step that does not fail."""


class Path:
    """A model and its update, on a strategy.

    Attributes:
        strategy: Where its variables live.
        hook: Called in every replica after the update: tests raise there.
        count: Counts steps, as part of the step.
    """

    momentum = MOMENTUM

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.hook: Callable[[], None] = nothing
        with strategy.scope():
            self.build()
            self.count = mr.Variable(0, trainable=False, name="count")

    def build(self) -> None:
        """Makes variables and optimizer, in scope."""
        raise NotImplementedError

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        """One replica's step; returns its part of the loss."""
        raise NotImplementedError

    def weights(self) -> dict[str, np.ndarray]:
        """The weights by name, as they are read outside `run`."""
        raise NotImplementedError

    def variables(self) -> Iterable[Any]:
        """All variables whose copies can be looked at."""
        raise NotImplementedError

    def replica_step(self, batch: Any, mask: Any) -> Any:
        """What every replica runs."""
        loss = self.update(*batch, mask)
        self.count.assign_add(1)
        self.hook()
        return loss

    def step(self, batch: Any, mask: Any) -> Any:
        """One step in cross-replica context; returns the loss."""
        parts = self.strategy.run(self.replica_step, args=(batch, mask))
        return self.strategy.reduce("SUM", parts, axis=None)

    def gradients(self, p: Any, sources: Any, x: Any, y: Any, mask: Any) -> tuple[Any, Any]:
        """A replica's part of the loss, and its gradient."""
        with mr.GradientTape() as tape:
            predicted = p(x) if callable(p) else predictions(p, x)
            loss = mr.losses.average_loss(losses(predicted, y), mask)
        return loss, tape.gradient(loss, sources)


class _OnVariables(Path):
    def build(self) -> None:
        self.p = {name: mr.Variable(value, name=name) for name, value in initial().items()}

    def weights(self) -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in self.p.items()}

    def variables(self) -> Iterable[Any]:
        return self.p.values()


class Optimizers(_OnVariables):
    """`mr.optimizers`."""

    def build(self) -> None:
        super().build()
        self.optimizer = mr.optimizers.SGD(RATE, momentum=MOMENTUM)

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.p, list(self.p.values()), x, y, mask)
        self.optimizer.apply_gradients(zip(gradients, self.p.values(), strict=True))
        return loss


class Assign(_OnVariables):
    """`assign(all_reduce(...))`."""

    momentum = 0.0

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.p, list(self.p.values()), x, y, mask)
        for variable, gradient in zip(self.p.values(), gradients, strict=True):
            total = mr.get_replica_context().all_reduce("SUM", gradient)
            variable.assign(variable - RATE * total)
        return loss


class MergeCall(_OnVariables):
    """`merge_call` with `reduce` and `extended.update`."""

    momentum = 0.0

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.p, list(self.p.values()), x, y, mask)

        def merged(strategy: Any, gradients: Any) -> None:
            for variable, gradient in zip(self.p.values(), gradients, strict=True):
                total = strategy.reduce("SUM", gradient, axis=None) if strategy.num_replicas_in_sync > 1 else gradient
                strategy.extended.update(variable, lambda v, g: v.assign_sub(RATE * g), args=(total,))

        mr.get_replica_context().merge_call(merged, args=(gradients,))
        return loss


class Optax(_OnVariables):
    """Plain optax on a mirrored tree."""

    def build(self) -> None:
        self.p = mr.mirror(initial())
        self.transform = optax.sgd(RATE, MOMENTUM)
        self.state = mr.mirror(self.transform.init(mr.unmirror(self.p)))

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.p, self.p, x, y, mask)
        gradients = mr.get_replica_context().all_reduce("SUM", gradients)
        before = mr.unmirror(self.p)
        updates, after = self.transform.update(gradients, mr.unmirror(self.state), before)
        mr.assign(self.p, optax.apply_updates(before, updates))
        mr.assign(self.state, after)
        return loss

    def variables(self) -> Iterable[Any]:
        return jax.tree.leaves((self.p, self.state))


class Linen(Path):
    """A Linen `TrainState` on mirrored variables."""

    def build(self) -> None:
        class Model(linen.Module):
            @linen.compact
            def __call__(self, x: Any) -> Any:
                start = initial()
                v = self.param("v", lambda _: jnp.asarray(start["v"]))
                c = self.param("c", lambda _: jnp.asarray(start["c"]))
                return predictions({"v": v, "c": c}, x)

        model = Model()
        parameters = model.init(jax.random.key(0), jnp.asarray(data()[0][:1]))
        state = TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.sgd(RATE, MOMENTUM))
        self.state = mr.mirror(state.replace(step=jnp.zeros((), jnp.int32)))

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        with mr.GradientTape() as tape:
            predicted = self.state.apply_fn(mr.unmirror(self.state.params), x)
            loss = mr.losses.average_loss(losses(predicted, y), mask)
        gradients = tape.gradient(loss, self.state.params)
        gradients = mr.get_replica_context().all_reduce("SUM", gradients)
        mr.assign(self.state, mr.unmirror(self.state).apply_gradients(grads=gradients))
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in self.state.params["params"].items()}

    def variables(self) -> Iterable[Any]:
        return [one for one in jax.tree.leaves(self.state) if isinstance(one, mr.Variable)]


class Nnx(Path):
    """An NNX module with `nnx.Optimizer`."""

    def build(self) -> None:
        class Model(nnx.Module):
            def __init__(self) -> None:
                for name, value in initial().items():
                    setattr(self, name, nnx.Param(jnp.asarray(value)))

            def __call__(self, x: Any) -> Any:
                return predictions({"v": self.v[...], "c": self.c[...]}, x)

        self.model = Model()
        self.optimizer = nnx.Optimizer(self.model, optax.sgd(RATE, MOMENTUM), wrt=nnx.Param)

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.model, nnx.state(self.model, nnx.Param), x, y, mask)
        self.optimizer.update(self.model, gradients)
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        model = mr.unmirror(self.model)
        return {name: np.asarray(getattr(model, name)[...]) for name in initial()}

    def variables(self) -> Iterable[Any]:
        leaves = jax.tree.leaves((self.model, self.optimizer), is_leaf=lambda one: isinstance(one, nnx.Variable))
        contents = [held(one) for one in leaves if isinstance(one, nnx.Variable)]
        return [one for one in contents if isinstance(one, mr.Variable)]


class Equinox(Path):
    """An Equinox module given to `mr.mirror`."""

    def build(self) -> None:
        class Model(equinox.Module):
            p: dict[str, Any]

            def __call__(self, x: Any) -> Any:
                return predictions(self.p, x)

        self.model = mr.mirror(Model({name: jnp.asarray(value) for name, value in initial().items()}))
        self.optimizer = mr.optimizers.Optimizer(optax.sgd(RATE, MOMENTUM))

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.model, self.model, x, y, mask)
        self.optimizer.apply_gradients([(gradients, self.model)])
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in self.model.p.items()}

    def variables(self) -> Iterable[Any]:
        return self.model.p.values()


class KerasLoop(Path):
    """A Keras model and a Keras optimizer in a custom loop."""

    def build(self) -> None:
        self.model = keras_model(self)
        self.optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        self.optimizer.build(self.model.trainable_variables)

    def update(self, x: Any, y: Any, mask: Any) -> Any:
        loss, gradients = self.gradients(self.model, self.model.trainable_variables, x, y, mask)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return dict(zip(("v", "c"), self.model.get_weights(), strict=True))

    def variables(self) -> Iterable[Any]:
        return [one.mirrored for one in (*self.model.trainable_variables, *self.optimizer.variables)]


class Model(keras.Model):  # type: ignore[misc]
    """The model as Keras layers. It calls its owner's hook: in `fit` there is no replica function of the user's."""

    def __init__(self, owner: Path) -> None:
        super().__init__()
        self.owner = _Owner(owner)
        self.v = keras.layers.Dense(1, "tanh", use_bias=False)
        self.c = keras.layers.Dense(1, use_bias=False)

    def call(self, x: Any) -> Any:
        examples = len(data()[0])
        self.owner.hook()
        return jnp.concatenate([self.v(x[:, examples:]), self.c(x[:, :examples])], 1)


class _Owner:
    """Hides a path from Keras, which looks for layers and variables in attributes."""

    def __init__(self, path: Path) -> None:
        self.hook = lambda: path.hook() if isinstance(path, KerasFit) else None


class OwnStep(Model):
    """The model with a `train_step` and a `test_step` of its own, as in the guide of Keras."""

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with mr.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._measured(predicted, y)

    def test_step(self, batch: Any) -> Any:
        x, y = batch
        return self._measured(self(x, training=False), y)

    def _measured(self, predicted: Any, y: Any) -> Any:
        for metric in self.metrics:
            metric.update_state(losses(predicted, y))  # the mean over the examples
        return {metric.name: metric.result() for metric in self.metrics}


def keras_model(owner: Path, kind: type[Model] = Model) -> Any:
    """The model with the initial weights."""
    model = kind(owner)
    model(jnp.asarray(data()[0][:1]))
    model.set_weights(list(initial().values()))
    return model


class KerasFit(Path):
    """Keras' `fit`, whose loop is Keras' own."""

    kind: type[Model] = Model

    def build(self) -> None:
        self.model = keras_model(self, self.kind)
        self.optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)

    def compile(self, **options: Any) -> None:
        """Chooses how steps run."""
        with self.strategy.scope():
            self.model.compile(self.optimizer, lambda y, predicted: losses(predicted, y), **options)

    def settle(self) -> None:
        """Has Keras build metrics, which it does by calling the model once."""
        self.model.evaluate(*(part[:BATCH] for part in data()), batch_size=BATCH, verbose=0)

    def epoch(self) -> list[float]:
        """One epoch; the mean of its losses."""
        history = self.model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
        return [float(loss) for loss in history.history["loss"]]

    def weights(self) -> dict[str, np.ndarray]:
        return dict(zip(("v", "c"), self.model.get_weights(), strict=True))

    def variables(self) -> Iterable[Any]:
        return [one.mirrored for one in (*self.model.trainable_variables, *self.optimizer.variables)]


class KerasStep(KerasFit):
    """Keras' `fit` of a model with a `train_step` of its own."""

    kind = OwnStep


PATHS: dict[str, type[Path]] = {
    "mr.optimizers": Optimizers,
    "optax in run": Optax,
    "assign(all_reduce)": Assign,
    "merge_call": MergeCall,
    "NNX optimizer": Nnx,
    "Keras custom loop": KerasLoop,
    "Keras fit": KerasFit,
    "Keras train_step": KerasStep,
    "Equinox": Equinox,
    "Linen TrainState": Linen,
}
