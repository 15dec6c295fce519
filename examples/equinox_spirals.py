"""An Equinox model, put on mirrored variables by `mirrored.mirror`: two spirals to be told apart, on 4 replicas.

python examples/equinox_spirals.py
"""

import argparse
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "equinox_spirals.png"
BATCH, COUNT = 64, 512


class Classifier(eqx.Module):
    """Fourier features of a point, then a perceptron."""

    frequencies: jax.Array
    layers: eqx.nn.MLP

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.frequencies = 2.0 * jax.random.normal(first, (2, 16))
        self.layers = eqx.nn.MLP(32, "scalar", 32, 2, key=second)

    def __call__(self, point):
        angles = point @ self.frequencies
        return self.layers(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)]))


def load():
    """Points f32[n, 2] on two spirals with noise, and on which one: f32[n]."""
    rng = np.random.default_rng(0)
    which = np.arange(COUNT) % 2
    radius = rng.uniform(0.1, 1.0, COUNT)
    angle = 3.5 * np.pi * radius + np.pi * which
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return (points + rng.normal(0, 0.015, points.shape)).astype(np.float32), which.astype(np.float32)


def batches(steps):
    points, which = load()
    order = np.random.default_rng(1)
    for _ in range(steps):
        chosen = order.choice(COUNT, BATCH, replace=False)
        yield points[chosen], which[chosen]


def losses_of(model, points, which):
    return optax.sigmoid_binary_cross_entropy(jax.vmap(model)(points), which)


def train(steps, strategy):
    """Trains on replicas; returns the loss of each step and the model."""
    with strategy.scope():
        model = mr.mirror(Classifier(jax.random.key(0)))
        optimizer = mr.optimizers.Optimizer(optax.adam(5e-3))

    def replica_step(points, which):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(losses_of(model, points, which))
        optimizer.apply_gradients([(tape.gradient(loss, model), model)])
        return loss

    @mr.function
    def step(points, which):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(points, which)), axis=None)

    return [float(step(*batch)) for batch in strategy.distribute_dataset(list(batches(steps)))], model


def train_on_one_device(steps):
    """The same training as Equinox' documentation writes it."""
    model, transform = Classifier(jax.random.key(0)), optax.adam(5e-3)
    state = transform.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, points, which):
        loss, gradients = eqx.filter_value_and_grad(lambda m: losses_of(m, points, which).mean())(model)
        updates, state = transform.update(gradients, state)
        return eqx.apply_updates(model, updates), state, loss

    losses = []
    for points, which in batches(steps):
        model, state, loss = step(model, state, points, which)
        losses.append(float(loss))
    return losses, model


def predict(model, points):
    """Which spiral each point is on: numbers above 0 say the second one. `unmirror` gives an ordinary model."""
    return np.asarray(jax.vmap(mr.unmirror(model))(jnp.asarray(points)))


def accuracy_of(model):
    points, which = load()
    return float(((predict(model, points) > 0) == (which > 0.5)).mean())


def draw(losses, model, path=PICTURE):
    from matplotlib import pyplot

    points, which = load()
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), dpi=70)
    axes[0].plot(losses)
    axes[0].set(title="loss", xlabel="step", yscale="log")
    grid = np.stack(np.meshgrid(*[np.linspace(-1.1, 1.1, 120)] * 2), -1).reshape(-1, 2).astype(np.float32)
    axes[1].contourf(*grid.T.reshape(2, 120, 120), predict(model, grid).reshape(120, 120) > 0, cmap="Pastel1")
    axes[1].scatter(*points.T, c=which, s=4, cmap="Set1")
    axes[1].set(title="what the model says where", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    strategy = mr.MirroredStrategy(jax.devices()[: options.replicas])
    losses, model = train(options.steps, strategy)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.4f}, accuracy {accuracy_of(model):.4f}")
    draw(losses, model)


if __name__ == "__main__":
    main()
