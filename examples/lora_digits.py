"""LoRA: a trained network is adapted to another task by small low-rank matrices; its own weights stay frozen.

First a network learns digits, then 1.4% as many numbers adapt it to digits that are turned by 90 degrees. The frozen
weights are mirrored variables, too; the tape computes gradients of the adapters only. Trains on 4 replicas.

    python examples/lora_digits.py
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "lora_digits.png"
WIDTH, RANK, BATCH, TEST = 512, 2, 64, 397


def load(turned):
    """Images f32[n, 64] and labels i32[n]: for training, and for testing."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = np.rot90(digits.images, axes=(1, 2)) if turned else digits.images
    images = (images[order].reshape(-1, 64) / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])


def make_network(seed=0):
    sizes = (64, WIDTH, WIDTH, 10)
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (a, b)) / np.sqrt(a) for key, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def make_adapters(network, seed=1):
    """One pair of matrices per layer. Their product is zero at first: the network starts as it is."""
    keys = jax.random.split(jax.random.key(seed), len(network))

    def pair(key, weights):
        rows, columns = weights.shape
        return {"down": jax.random.normal(key, (rows, RANK)) / np.sqrt(rows), "up": jnp.zeros((RANK, columns))}

    return [pair(key, weights) for key, weights in zip(keys, network, strict=True)]


def logits_of(network, adapters, x):
    for position, weights in enumerate(network):
        y = x @ weights
        if adapters is not None:
            y = y + (x @ adapters[position]["down"]) @ adapters[position]["up"]
        x = jax.nn.relu(y) if position < len(network) - 1 else y
    return x


def batches(training, steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(0, len(training[0]), BATCH)
        yield training[0][rows], training[1][rows]


def train(network, adapters, trained, training, steps, strategy, rate):
    """Trains the variables in `trained`; returns the loss of each step."""
    with strategy.scope():
        optimizer = mr.optimizers.Adam(rate)

    def replica_step(x, y):
        with mr.GradientTape() as tape:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(network, adapters, x), y)
            loss = mr.losses.average_loss(losses)
        optimizer.apply(tape.gradient(loss, trained), trained)
        return loss

    @mr.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    return [float(step(*batch)) for batch in strategy.distribute_dataset(list(batches(training, steps)))]


def accuracy_of(network, adapters, test):
    return float((jax.jit(logits_of)(mr.unmirror(network), mr.unmirror(adapters), test[0]).argmax(1) == test[1]).mean())


def experiment(steps, strategy):
    """Trains, adapts, and returns the losses of both, the accuracies, and the network and its adapters."""
    (upright, upright_test), (turned, turned_test) = load(turned=False), load(turned=True)
    with strategy.scope():
        network = mr.mirror(make_network())
        adapters = mr.mirror(make_adapters(network))
    first = train(network, None, network, upright, steps, strategy, rate=1e-3)
    accuracies = {
        "upright": accuracy_of(network, None, upright_test),
        "turned, not adapted": accuracy_of(network, None, turned_test),
    }
    second = train(network, adapters, adapters, turned, 2 * steps, strategy, rate=1e-2)
    accuracies["turned, adapted"] = accuracy_of(network, adapters, turned_test)
    accuracies["upright, adapters off"] = accuracy_of(network, None, upright_test)
    return (first, second), accuracies, network, adapters


def size_of(tree):
    return sum(int(np.prod(variable.shape)) for variable in jax.tree.leaves(tree))


def draw(losses, accuracies, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.6), dpi=70)
    axes[0].plot(losses[0], label="network, upright digits")
    axes[0].plot(range(len(losses[0]), len(losses[0]) + len(losses[1])), losses[1], label="adapters, turned digits")
    axes[0].set(title="loss", xlabel="step", yscale="log")
    axes[0].legend(fontsize="small")
    bars = axes[1].barh(list(accuracies), list(accuracies.values()), color=["C0", "gray", "C1", "C0"])
    axes[1].bar_label(bars, fmt="%.2f", padding=2)
    axes[1].set(title="test accuracy", xlim=(0, 1.15))
    axes[1].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    losses, accuracies, network, adapters = experiment(options.steps, mr.MirroredStrategy())
    print(f"{size_of(adapters)} numbers adapt {size_of(network)}:", {k: round(v, 3) for k, v in accuracies.items()})
    draw(losses, accuracies)


if __name__ == "__main__":
    main()
