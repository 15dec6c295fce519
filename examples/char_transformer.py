"""A character-level transformer in plain JAX: its parameters are a pytree, and `mirrored.mirror` makes it a model.

It learns to write like the data set descriptions that ship with scikit-learn, on 4 replicas.

    python examples/char_transformer.py
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from sklearn import datasets

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "char_transformer.png"
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 48, 32


def load():
    """The text, its alphabet, and the text as numbers."""
    loaders = (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer, datasets.load_digits)
    text = "\n".join(load().DESCR for load in (*loaders, datasets.load_diabetes))
    alphabet = sorted(set(text))
    return text, alphabet, np.array([alphabet.index(character) for character in text], np.int32)


def make_parameters(symbols, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 64))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    def block():
        names = {"query": WIDTH, "key": WIDTH, "value": WIDTH, "mix": WIDTH, "up": 4 * WIDTH}
        return {
            **{name: matrix(WIDTH, columns) for name, columns in names.items()},
            "down": matrix(4 * WIDTH, WIDTH),
            "scale": jnp.ones((2, WIDTH)),
        }

    return {
        "symbols": 0.1 * jax.random.normal(next(keys), (symbols, WIDTH)),
        "places": 0.1 * jax.random.normal(next(keys), (LENGTH, WIDTH)),
        "blocks": [block() for _ in range(LAYERS)],
        "out": matrix(WIDTH, symbols),
    }


def normalised(x, scale):
    return scale * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(block, x):
    shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
    query, key, value = ((x @ block[name]).reshape(shape) for name in ("query", "key", "value"))
    return jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape) @ block["mix"]


def logits_of(parameters, tokens):
    """f32[batch, length, symbols] from i32[batch, length]."""
    x = jnp.asarray(parameters["symbols"])[tokens] + jnp.asarray(parameters["places"])[: tokens.shape[1]]
    for block in parameters["blocks"]:
        scale = jnp.asarray(block["scale"])
        x = x + attention(block, normalised(x, scale[0]))
        x = x + jax.nn.gelu(normalised(x, scale[1]) @ block["up"]) @ block["down"]
    return x @ parameters["out"]


def batches(numbers, steps, seed=0):
    """Random pieces of the text: what is seen, and what comes next."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(0, len(numbers) - LENGTH - 1, BATCH)
        pieces = np.stack([numbers[start : start + LENGTH + 1] for start in starts])
        yield pieces[:, :-1], pieces[:, 1:]


def train(steps, strategy):
    """Trains; returns the loss of each step, in nats per character, and the parameters."""
    _, alphabet, numbers = load()
    with strategy.scope():
        parameters = mr.mirror(make_parameters(len(alphabet)))
        optimizer = mr.optimizers.Adam(3e-3, global_clipnorm=1.0)

    def replica_step(tokens, targets):
        with mr.GradientTape() as tape:
            logp = jax.nn.log_softmax(logits_of(parameters, tokens))
            loss = mr.losses.average_loss(-jnp.take_along_axis(logp, targets[..., None], -1)[..., 0])
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    @mr.function
    def step(tokens, targets):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(tokens, targets)), axis=None)

    data = strategy.distribute_dataset(list(batches(numbers, steps)))
    return [float(step(tokens, targets)) for tokens, targets in data], parameters


def write(parameters, start, count, seed=0):
    """Text from the model, character by character."""
    _, alphabet, _ = load()
    arrays = mr.unmirror(parameters)
    rng = np.random.default_rng(seed)
    predict = jax.jit(logits_of)
    text = start
    for _ in range(count):
        seen = [alphabet.index(character) for character in text[-LENGTH:]]
        padded = np.array([seen + [0] * (LENGTH - len(seen))])
        p = np.asarray(jax.nn.softmax(predict(arrays, padded)[0, len(seen) - 1] / 0.7), np.float64)
        text += alphabet[rng.choice(len(alphabet), p=p / p.sum())]
    return text


def draw(losses, sample, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.6), dpi=70)
    axes[0].plot(losses)
    axes[0].set(title="nats per character", xlabel="step")
    axes[1].text(0, 0.5, sample, family="monospace", fontsize=7, va="center", wrap=True)
    axes[1].set(title="what it writes")
    axes[1].axis("off")
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    losses, parameters = train(options.steps, mr.MirroredStrategy())
    sample = write(parameters, "The data ", 240)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.3f} nats per character\n{sample}")
    draw(losses, sample)


if __name__ == "__main__":
    main()
