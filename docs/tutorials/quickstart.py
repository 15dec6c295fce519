# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From one device to four replicas
#
# This tutorial starts from a training loop in plain JAX and optax, and turns it into a loop on 4 replicas that computes
# the same losses. It takes ten minutes and needs no GPU: the replicas run on simulated CPU devices. The data and the
# figure need scikit-learn and matplotlib (`pip install '.[demo]'`).

# %%
import mirrored as mr

# Before JAX's first operation. Omit this line to use your GPUs.
mr.config.set_virtual_devices(4)

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.data / 16).astype(np.float32)
labels = digits.target.astype(np.int32)
print("images", images.shape, "labels", labels.shape)
print(len(jax.devices()), "devices")


# %% [markdown]
# ## The loop on one device
#
# A model of two layers, a loss, and an optimizer of optax. Nothing here is special to this library.


# %%
def init(seed):
    rng = np.random.default_rng(seed)
    return {
        "hidden": jnp.asarray(rng.normal(size=(64, 32)) / 8, jnp.float32),
        "out": jnp.asarray(rng.normal(size=(32, 10)) / 6, jnp.float32),
    }


def per_example_loss(params, x, y):
    logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def batches(size, epochs):
    order = np.random.default_rng(0)
    for _ in range(epochs):
        rows = order.permutation(len(images))
        for start in range(0, len(rows) - size + 1, size):
            take = rows[start : start + size]
            yield images[take], labels[take]


# %%
params = init(seed=1)
optimizer = optax.adam(1e-2)
state = optimizer.init(params)


@jax.jit
def single_device_step(params, state, x, y):
    def mean_loss(params):
        return per_example_loss(params, x, y).mean()

    loss, gradients = jax.value_and_grad(mean_loss)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


expected = []
for x, y in batches(size=128, epochs=5):
    params, state, loss = single_device_step(params, state, x, y)
    expected.append(float(loss))
print(f"{len(expected)} steps, loss {expected[0]:.4f} -> {expected[-1]:.4f}")

# %% [markdown]
# ## The same loop on four replicas
#
# Five things change:
#
# | plain JAX | mirrored |
# |---|---|
# | `params` and `state` are arguments and results | variables, created in `strategy.scope()`, one copy per replica |
# | `jax.value_and_grad` | a `GradientTape` around the forward pass |
# | the mean over the batch | `average_loss`: the replica's part of the mean over the *global* batch |
# | `jax.jit` | `mr.function`: one compiled program for all devices |
# | `optax.adam(1e-2)` | `mr.optimizers.Adam(1e-2)`, or `mr.optimizers.Optimizer(transform)` for any optax transform |
#
# `optimizer.apply(gradients, params)` and `optimizer.apply_gradients([(gradient, variable), ...])` are the same step:
# the gradients of all replicas are summed, so no `all_reduce` comes before.

# %%
strategy = mr.MirroredStrategy()
with strategy.scope():
    params = mr.mirror(init(seed=1))  # A tree of variables.
    optimizer = mr.optimizers.Adam(1e-2)


def replica_step(x, y):  # Runs on each replica, with its part of the batch.
    with mr.GradientTape() as tape:
        losses = per_example_loss(mr.unmirror(params), x, y)
        loss = mr.losses.average_loss(losses)
    gradients = tape.gradient(loss, params)
    # Sums the gradients over all replicas before the update.
    optimizer.apply_gradients([(gradients, params)])
    return loss


@mr.function
def train_step(batch):
    losses = strategy.run(replica_step, args=batch)
    return strategy.reduce(mr.ReduceOp.SUM, losses, axis=None)


dataset = strategy.experimental_distribute_dataset(list(batches(size=128, epochs=5)))
found = [float(train_step(batch)) for batch in dataset]
print(f"{len(found)} steps, loss {found[0]:.4f} -> {found[-1]:.4f}")
print("largest difference to one device:", np.abs(np.array(found) - expected).max())
np.testing.assert_allclose(found, expected, rtol=1e-3)

# %% [markdown]
# The losses are those of one device, up to rounding. Each batch of 128 examples was divided into four of 32.

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(expected, label="one device, plain JAX", linewidth=4, alpha=0.4)
axes.plot(found, label="4 replicas", linewidth=1)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## Where the values are
#
# A variable shows its copies and their devices, and a per-replica value its components:

# %%
with strategy.scope():
    print(mr.Variable(1.5, name="scale"))

# %%
one_batch = [(images[:8], labels[:8])]
batch = next(iter(strategy.experimental_distribute_dataset(one_batch)))
print(batch[1])

# %% [markdown]
# ## What happens if a replica's value differs
#
# The library refuses programs whose copies of a variable would diverge. This step assigns each replica's own gradient:


# %%
def wrong_step(x, y):
    with mr.GradientTape() as tape:
        losses = per_example_loss(mr.unmirror(params), x, y)
        loss = mr.losses.average_loss(losses)
    gradient = tape.gradient(loss, params["out"])
    params["out"].assign(params["out"] - 0.1 * gradient)


try:
    strategy.run(mr.function(wrong_step), args=batch)
except mr.errors.MirroredError as error:
    print(type(error).__name__)
    print(error)

# %% [markdown]
# ## Next
#
# - [Models of Keras, Flax NNX and Equinox](../frameworks.md)
# - [Programs written for TensorFlow](../coming_from_tensorflow.md)
# - [Several machines](../guides/multi_worker.md)
