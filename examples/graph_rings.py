"""A graph network in plain JAX: is the ring in a random graph one of six nodes, or of four?

Each synthesised graph is a ring with trees attached to it, in random order. Its adjacency matrix is dense, so a batch
of graphs is one array. Trains on 4 replicas.

    python examples/graph_rings.py
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
PICTURE = pathlib.Path(__file__).parent / "pictures" / "graph_rings.png"
NODES, WIDTH, ROUNDS, BATCH = 14, 32, 4, 64


def graph(rng, has_ring):
    """An adjacency matrix f32[NODES, NODES]: a ring of six or of four nodes, with trees attached to it."""
    edges = np.zeros((NODES, NODES), np.float32)
    ring = 6 if has_ring else 4
    for node in range(ring):
        edges[node, (node + 1) % ring] = 1
    for node in range(ring, NODES):
        edges[node, rng.integers(0, node)] = 1
    order = rng.permutation(NODES)
    return np.maximum(edges, edges.T)[order][:, order]


def graphs(count, seed):
    """Adjacency matrices f32[count, NODES, NODES], and whether they have a ring of six, i32[count]."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, count).astype(np.int32)
    return np.stack([graph(rng, kind) for kind in kinds]), kinds


def make_parameters(seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 2 * ROUNDS + 1))

    def layer(rows):
        return {
            "own": jax.random.normal(next(keys), (rows, WIDTH)) / np.sqrt(rows),
            "others": jax.random.normal(next(keys), (rows, WIDTH)) / np.sqrt(rows),
            "bias": jnp.zeros(WIDTH),
        }

    layers = [layer(ROUNDS + 4)] + [layer(WIDTH) for _ in range(ROUNDS - 1)]
    return {"layers": layers, "out": jax.random.normal(next(keys), (WIDTH, 2)) / np.sqrt(WIDTH)}


def walks(edges):
    """For each node the share of random walks of each length that return to it: f32[batch, NODES, ROUNDS + 4]."""
    step = edges / edges.sum(-1, keepdims=True)
    power, returns = step, []
    for _ in range(ROUNDS + 4):
        returns.append(jnp.diagonal(power, axis1=1, axis2=2))
        power = power @ step
    return jnp.stack(returns, -1)


def logits_of(parameters, edges):
    x = walks(edges)
    for layer in parameters["layers"]:
        x = jax.nn.relu(x @ layer["own"] + edges @ (x @ layer["others"]) / 3 + layer["bias"])
    return x.mean(axis=1) @ parameters["out"]


def train(steps, strategy):
    """Trains; returns the loss of each step and the parameters."""
    with strategy.scope():
        parameters = mr.mirror(make_parameters())
        optimizer = mr.optimizers.Adam(3e-3, global_clipnorm=1.0)

    def replica_step(edges, kinds):
        with mr.GradientTape() as tape:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(parameters, edges), kinds)
            loss = mr.losses.average_loss(losses)
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    @mr.function
    def step(edges, kinds):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(edges, kinds)), axis=None)

    data = strategy.distribute_dataset([graphs(BATCH, seed) for seed in range(1, steps + 1)])
    return [float(step(*batch)) for batch in data], parameters


def predict(parameters, edges):
    """The probability of a ring of six, f32[batch]."""
    return np.asarray(jax.nn.softmax(jax.jit(logits_of)(mr.unmirror(parameters), edges))[:, 1])


def accuracy_of(parameters, count=500):
    edges, kinds = graphs(count, seed=10**6)
    return float(((predict(parameters, edges) > 0.5) == kinds).mean())


def draw(losses, parameters, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(9, 2.6), dpi=70)
    axes[0].plot(losses)
    axes[0].set(title="loss", xlabel="step")
    edges, kinds = graphs(3, seed=17)
    for axis, one, probability, kind in zip(axes[1:], edges, predict(parameters, edges), kinds, strict=True):
        laplacian = np.diag(one.sum(0)) - one
        places = np.linalg.eigh(laplacian)[1][:, 1:3]
        for a, b in np.argwhere(np.triu(one)):
            axis.plot(*places[[a, b]].T, color="gray", linewidth=1)
        axis.scatter(*places.T, s=18, zorder=2)
        axis.set(title=f"ring of {6 if kind else 4}, p(6) = {probability:.2f}", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    losses, parameters = train(options.steps, mr.MirroredStrategy())
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.4f}, accuracy {accuracy_of(parameters):.3f}")
    draw(losses, parameters)


if __name__ == "__main__":
    main()
