"""A Flax NNX model with batch normalization and dropout, made in scope; `nnx.Optimizer` sums over the replicas.

It learns the handwritten digits that ship with scikit-learn, on 4 replicas.

    python examples/nnx_digits.py
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "nnx_digits.png"
BATCH, TEST = 64, 357


class Classifier(nnx.Module):
    """A small convnet. Without noise it is a deterministic function of the batch, to be compared."""

    def __init__(self, rngs, noise=True):
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs) if noise else nnx.LayerNorm(16, rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.dropout = nnx.Dropout(0.2 if noise else 0.0, rngs=rngs)
        self.out = nnx.Linear(4 * 4 * 32, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.norm(self.first(images)))
        x = nnx.relu(self.second(x)).reshape(len(images), -1)
        return self.out(self.dropout(x))


def load():
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])


def batches(steps):
    images, labels = load()[0]
    order = np.random.default_rng(1)
    for _ in range(steps):
        chosen = order.choice(len(images), BATCH, replace=False)
        yield images[chosen], labels[chosen]


def losses_of(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels)


def train(steps, strategy, noise=True):
    """Trains on replicas; returns the loss of each step and the model."""
    with strategy.scope():
        model = Classifier(nnx.Rngs(0), noise)
        optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    def replica_step(images, labels):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(losses_of(model, images, labels))
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))
        return loss

    @mr.function
    def step(images, labels):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(images, labels)), axis=None)

    return [float(step(*batch)) for batch in strategy.distribute_dataset(list(batches(steps)))], model


def train_on_one_device(steps):
    """The same training as NNX's documentation writes it."""
    model = Classifier(nnx.Rngs(0), noise=False)
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, images, labels):
        loss, gradients = nnx.value_and_grad(lambda model: losses_of(model, images, labels).mean())(model)
        optimizer.update(model, gradients)
        return loss

    return [float(step(model, optimizer, *batch)) for batch in batches(steps)], model


def accuracy_of(model):
    """The share of test images seen rightly. `unmirror` gives an ordinary model."""
    images, labels = load()[1]
    model = mr.unmirror(model)
    model.eval()
    return float(jnp.mean(model(jnp.asarray(images)).argmax(1) == labels))


def draw(losses, model, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.6), dpi=70)
    axes[0].plot(losses)
    axes[0].set(title="loss", xlabel="step", yscale="log")
    kernels = np.asarray(model.first.kernel[...])[:, :, 0]
    rows = [np.hstack([np.pad(kernels[:, :, i], 1) for i in range(row * 8, row * 8 + 8)]) for row in range(2)]
    axes[1].imshow(np.vstack(rows), cmap="coolwarm")
    axes[1].set(title="kernels of the first convolution", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    strategy = mr.MirroredStrategy(jax.devices()[: options.replicas])
    losses, model = train(options.steps, strategy)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.4f}, test accuracy {accuracy_of(model):.4f}")
    draw(losses, model)


if __name__ == "__main__":
    main()
