"""Contrastive learning (SimCLR) on digits without labels: two views of an image attract each other, all others repel.

The more other images, the better. So each replica gathers the embeddings of all replicas: `all_gather` is
differentiable, and the loss is that of one device with the whole batch. Trains on 4 replicas.

    python examples/contrastive_digits.py
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "contrastive_digits.png"
BATCH, WIDTH, TEMPERATURE = 256, 128, 0.2


def load():
    """Images f32[n, 8, 8] and labels, shuffled. The labels are used to test the embeddings only."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.images[order] / 16).astype(np.float32), digits.target[order]


def views(images, rng):
    """Random shifts by up to one pixel, contrasts and noise."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    rows, columns = rng.integers(0, 3, (2, len(images)))
    shifted = np.stack([one[r : r + 8, c : c + 8] for one, r, c in zip(padded, rows, columns, strict=True)])
    scaled = shifted * rng.uniform(0.6, 1.4, (len(images), 1, 1))
    return (scaled + 0.15 * rng.normal(size=scaled.shape)).reshape(len(images), 64).astype(np.float32)


def batches(steps, seed=0):
    images = load()[0]
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = images[rng.choice(len(images), BATCH, replace=False)]
        yield views(chosen, rng), views(chosen, rng)


def make_parameters(seed=0):
    sizes = (64, WIDTH, WIDTH, 32)
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (a, b)) / np.sqrt(a) for key, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def embedding_of(parameters, x):
    """Unit vectors f32[batch, 32] from images f32[batch, 64]."""
    for weights in parameters[:-1]:
        x = jax.nn.relu(x @ weights)
    x = x @ parameters[-1]
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) + 1e-6)


def losses_of(first, second, all_second):
    """The loss of each row of `first`: its own view among those of all images."""
    logits = first @ all_second.T / TEMPERATURE
    own = jnp.sum(first * second, axis=1) / TEMPERATURE
    return jax.nn.logsumexp(logits, axis=1) - own


def train(steps, strategy):
    """Trains; returns the loss of each step and the parameters."""
    with strategy.scope():
        parameters = mr.mirror(make_parameters())
        optimizer = mr.optimizers.Adam(2e-3)

    def replica_step(one, other):
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            first, second = embedding_of(parameters, one), embedding_of(parameters, other)
            all_first, all_second = context.all_gather(first, axis=0), context.all_gather(second, axis=0)
            losses = losses_of(first, second, all_second) + losses_of(second, first, all_first)
            loss = mr.losses.average_loss(losses)
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    @mr.function
    def step(one, other):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(one, other)), axis=None)

    return [float(step(*batch)) for batch in strategy.distribute_dataset(list(batches(steps)))], parameters


def neighbour_accuracy(embedding):
    """How often the nearest of 50 embedded images has the same label as each of the others."""
    images, labels = load()
    points = np.asarray(embedding(images.reshape(-1, 64)))
    nearest = (points[50:] @ points[:50].T).argmax(1)
    return float((labels[nearest] == labels[50:]).mean())


def draw(losses, parameters, path=PICTURE):
    from matplotlib import pyplot

    images, labels = load()
    points = np.asarray(embedding_of(mr.unmirror(parameters), images.reshape(-1, 64)))
    centred = points - points.mean(0)
    plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.8), dpi=60)
    axes[0].plot(losses)
    axes[0].set(title="contrastive loss", xlabel="step")
    axes[1].scatter(*plane[:500].T, c=labels[:500], cmap="tab10", s=5)
    axes[1].set(title="embeddings, colored by the digit", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    losses, parameters = train(options.steps, mr.MirroredStrategy())
    arrays = mr.unmirror(parameters)
    before = neighbour_accuracy(lambda x: embedding_of(make_parameters(), x))
    after = neighbour_accuracy(lambda x: embedding_of(arrays, x))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, nearest neighbours: untrained {before:.3f}, trained {after:.3f}")
    draw(losses, parameters)


if __name__ == "__main__":
    main()
