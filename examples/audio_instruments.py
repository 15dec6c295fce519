"""Synthesised sounds, classified by their spectrograms: a small convnet in plain JAX.

Four instruments differ in their harmonics and envelopes, not in pitch. Trains on 4 replicas.

    python examples/audio_instruments.py
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "audio_instruments.png"
INSTRUMENTS = ("flute", "organ", "plucked string", "bell")
RATE, SAMPLES, WINDOW, BATCH = 8000, 2048, 128, 64


def sounds(count, seed):
    """Waves f32[count, SAMPLES] with noise, and the instruments i32[count] that they come from."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, len(INSTRUMENTS), count)
    t = np.arange(SAMPLES) / RATE
    waves = np.empty((count, SAMPLES), np.float32)
    for row, kind in enumerate(kinds):
        pitch = rng.uniform(200, 600)
        multiples = (1, 2.76, 5.4) if kind == 3 else np.arange(1, 7)  # A bell's partials are not harmonic.
        strengths = {0: 4.0, 1: 0.5, 2: 1.5, 3: 1.0}[kind]
        wave = sum(np.sin(2 * np.pi * (pitch * m * t + rng.random())) * m**-strengths for m in multiples)
        decay = {0: 0.0, 1: 0.0, 2: 12.0, 3: 4.0}[kind]
        waves[row] = wave * np.exp(-decay * t) + 0.3 * rng.normal(size=SAMPLES)
    return waves, kinds.astype(np.int32)


def spectrogram(waves):
    """f32[batch, frames, frequencies] from f32[batch, samples]."""
    frames = waves.reshape(len(waves), -1, WINDOW) * jnp.hanning(WINDOW)
    return jnp.log(jnp.abs(jnp.fft.rfft(frames)) + 1e-2)


def make_parameters(seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "first": jax.random.normal(keys[0], (3, 65, 32)) / np.sqrt(3 * 65),
        "second": jax.random.normal(keys[1], (3, 32, 32)) / np.sqrt(3 * 32),
        "out": jax.random.normal(keys[2], (32, len(INSTRUMENTS))) / np.sqrt(32),
    }


def logits_of(parameters, waves):
    x = spectrogram(waves)
    for name in ("first", "second"):
        kernel = jnp.asarray(parameters[name])
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))
    return x.mean(axis=1) @ parameters["out"]


def train(steps, strategy):
    """Trains; returns the loss of each step and the parameters."""
    with strategy.scope():
        parameters = mr.mirror(make_parameters())
        optimizer = mr.optimizers.Adam(3e-3)

    def replica_step(waves, kinds):
        with mr.GradientTape() as tape:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(parameters, waves), kinds)
            loss = mr.losses.average_loss(losses)
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    @mr.function
    def step(waves, kinds):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(waves, kinds)), axis=None)

    data = strategy.distribute_dataset([sounds(BATCH, seed) for seed in range(1, steps + 1)])
    return [float(step(*batch)) for batch in data], parameters


def confusion_of(parameters, count=400):
    """How often each instrument (row) is heard as each other (column), on new sounds."""
    waves, kinds = sounds(count, seed=10**6)
    heard = np.asarray(jax.jit(logits_of)(mr.unmirror(parameters), waves).argmax(1))
    table = np.zeros((len(INSTRUMENTS), len(INSTRUMENTS)), int)
    np.add.at(table, (kinds, heard), 1)
    return table


def draw(losses, confusion, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(9, 2.8), dpi=60)
    waves, kinds = sounds(64, seed=5)
    chosen = [int(np.argmax(kinds == kind)) for kind in range(4)]
    pictures = np.asarray(spectrogram(waves[chosen])).transpose(0, 2, 1)[:, ::-1]
    axes[0].imshow(np.hstack(pictures), aspect="auto", cmap="gray_r", interpolation="nearest")
    axes[0].set(title="flute, organ, string, bell", xticks=[], yticks=[], ylabel="frequency")
    axes[1].plot(losses)
    axes[1].set(title="loss", xlabel="step", yscale="log")
    axes[2].imshow(confusion, cmap="Blues")
    for (row, column), number in np.ndenumerate(confusion):
        axes[2].text(column, row, number, ha="center", va="center", color="gray" if row != column else "white")
    axes[2].set(title="played (row), heard", xticks=[], yticks=range(4), yticklabels=INSTRUMENTS)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    losses, parameters = train(options.steps, mr.MirroredStrategy())
    confusion = confusion_of(parameters)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.4f}, accuracy {np.trace(confusion) / confusion.sum():.3f}")
    draw(losses, confusion)


if __name__ == "__main__":
    main()
