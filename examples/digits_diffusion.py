"""Denoising diffusion on 8 x 8 digits: a network learns to remove noise, and then makes digits from noise alone.

Each replica draws its own noise: the key is folded with the replica's id and the step. Trains on 4 replicas.

    python examples/digits_diffusion.py
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
PICTURE = pathlib.Path(__file__).parent / "pictures" / "digits_diffusion.png"
LEVELS, WIDTH, BATCH = 60, 256, 256
KEPT = np.cumprod(1 - np.linspace(1e-3, 0.15, LEVELS)).astype(np.float32)  # How much signal is left at each level.


def load():
    """Images f32[n, 64] in [-1, 1] and their labels."""
    digits = load_digits()
    return (digits.data / 8 - 1).astype(np.float32), digits.target.astype(np.int32)


def make_parameters(seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)

    def matrix(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) / np.sqrt(rows)

    return {
        "image": matrix(keys[0], 64, WIDTH),
        "level": matrix(keys[1], 16, WIDTH),
        "label": matrix(keys[2], 10, WIDTH) * np.sqrt(10),
        "hidden": [matrix(key, WIDTH, WIDTH) for key in jax.random.split(keys[3], 2)],
        "out": matrix(keys[4], WIDTH, 64) * 0.1,
    }


def noise_in(parameters, x, level, label):
    """The noise that the network sees in x f32[batch, 64], at levels i32[batch], for labels i32[batch]."""
    angles = level[:, None] / LEVELS * 2.0 ** jnp.arange(8)
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    h = x @ parameters["image"] + waves @ parameters["level"] + jnp.asarray(parameters["label"])[label]
    for weights in parameters["hidden"]:
        h = h + jax.nn.silu(h) @ weights
    return jax.nn.silu(h) @ parameters["out"]


def batches(steps, seed=0):
    images, labels = load()
    rng = np.random.default_rng(seed)
    for step in range(steps):
        rows = rng.integers(0, len(images), BATCH)
        yield images[rows], labels[rows], np.full(BATCH, step, np.uint32)


def train(steps, strategy):
    """Trains; returns the loss of each step and the parameters."""
    with strategy.scope():
        parameters = mr.mirror(make_parameters())
        optimizer = mr.optimizers.Adam(2e-3, global_clipnorm=1.0)

    def replica_step(images, labels, number):
        replica = mr.get_replica_context().replica_id_in_sync_group
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), number[0]), replica)
        level_key, noise_key = jax.random.split(key)
        level = jax.random.randint(level_key, (len(images),), 0, LEVELS)
        noise = jax.random.normal(noise_key, images.shape)
        kept = jnp.asarray(KEPT)[level, None]
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
        with mr.GradientTape() as tape:
            losses = jnp.mean((noise_in(parameters, noisy, level, labels) - noise) ** 2, axis=1)
            loss = mr.losses.average_loss(losses)
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    @mr.function
    def step(images, labels, number):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(images, labels, number)), axis=None)

    return [float(step(*batch)) for batch in strategy.distribute_dataset(list(batches(steps)))], parameters


def sample(parameters, labels, seed=1):
    """Images f32[n, 64] of the given digits, from noise alone."""
    parameters = mr.unmirror(parameters)
    kept = jnp.asarray(KEPT)
    before = jnp.concatenate([jnp.ones(1), kept[:-1]])

    def denoise(x, level_and_key):
        level, key = level_and_key
        noise = noise_in(parameters, x, jnp.full(len(labels), level), labels)
        clean = jnp.clip((x - jnp.sqrt(1 - kept[level]) * noise) / jnp.sqrt(kept[level]), -1, 1)
        share = (1 - before[level]) / (1 - kept[level])  # The mean and variance of the level before, as in DDPM.
        ratio = kept[level] / before[level]
        mean = jnp.sqrt(before[level]) * (1 - ratio) / (1 - kept[level]) * clean + jnp.sqrt(ratio) * share * x
        return mean + jnp.sqrt(share * (1 - ratio)) * jax.random.normal(key, x.shape), None

    keys = jax.random.split(jax.random.key(seed), LEVELS + 1)
    start = jax.random.normal(keys[-1], (len(labels), 64))
    return np.asarray(jax.lax.scan(denoise, start, (jnp.arange(LEVELS)[::-1], keys[:-1]))[0])


def likeness_of(parameters):
    """The share of generated digits that a nearest-neighbour classifier takes for the digit that was asked for."""
    images, known = load()
    labels = np.arange(200, dtype=np.int32) % 10
    drawn = sample(parameters, labels)
    nearest = ((drawn[:, None] - images[None]) ** 2).sum(-1).argmin(1)
    return float((known[nearest] == labels).mean())


def draw(losses, parameters, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.8), dpi=70)
    axes[0].plot(losses, linewidth=0.7)
    axes[0].set(title="mean squared error of the noise", xlabel="step")
    drawn = sample(parameters, np.arange(30, dtype=np.int32) % 10).reshape(3, 10, 8, 8)
    axes[1].imshow(np.vstack([np.hstack(row) for row in drawn]), cmap="gray_r")
    axes[1].set(title="digits from noise", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    losses, parameters = train(options.steps, mr.MirroredStrategy())
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-50:]):.4f}; {likeness_of(parameters):.0%} are the digit asked for")
    draw(losses, parameters)


if __name__ == "__main__":
    main()
