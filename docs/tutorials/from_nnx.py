# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From Flax NNX
#
# This tutorial trains a small NNX classifier twice: on one device with `nnx.jit`, and on 4 replicas. The model class
# does not change. The losses of both runs are equal up to rounding.

# %%
import mirrored as mr

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.data / 16).astype(np.float32)
labels = digits.target.astype(np.int32)
training, test = (images[357:], labels[357:]), (images[:357], labels[:357])


def batches(steps, size=128):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.choice(len(training[0]), size, replace=False)
        yield training[0][rows], training[1][rows]


class Classifier(nnx.Module):
    def __init__(self, rngs, dropout=0.0):
        self.hidden = nnx.Linear(64, 48, rngs=rngs)
        self.norm = nnx.LayerNorm(48, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.out = nnx.Linear(48, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def losses_of(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y)


# %% [markdown]
# ## On one device
#
# This is the training step of the NNX documentation.

# %%
model = Classifier(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


@nnx.jit
def single_device_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda model: losses_of(model, x, y).mean())(model)
    optimizer.update(model, gradients)
    return loss


expected = [float(single_device_step(model, optimizer, x, y)) for x, y in batches(60)]
print(f"loss {expected[0]:.4f} -> {expected[-1]:.4f}")

# %% [markdown]
# ## On four replicas
#
# ```diff
# +strategy = mr.MirroredStrategy()
# +with strategy.scope():
# +    model = Classifier(nnx.Rngs(0))
# +    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
# -model = Classifier(nnx.Rngs(0))
# -optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
#
# -@nnx.jit
# -def single_device_step(model, optimizer, x, y):
# -    loss, gradients = nnx.value_and_grad(lambda model: losses_of(model, x, y).mean())(model)
# -    optimizer.update(model, gradients)
# -    return loss
# +def replica_step(x, y):
# +    with mr.GradientTape() as tape:
# +        loss = mr.losses.average_loss(losses_of(model, x, y))
# +    optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))
# +    return loss
# +
# +@mr.function
# +def train_step(x, y):
# +    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)
# ```
#
# The variables of the model are created in the scope, so each has one copy per device. `nnx.Optimizer.update` sums the
# gradients over the replicas before it applies them. `average_loss` returns the replica's part of the mean over the
# global batch, so the sum over the replicas is the gradient of that mean.

# %%
strategy = mr.MirroredStrategy()
with strategy.scope():
    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


def replica_step(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(losses_of(model, x, y))
    optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))
    return loss


@mr.function
def train_step(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)


found = [float(train_step(x, y)) for x, y in strategy.experimental_distribute_dataset(list(batches(60)))]
print(f"loss {found[0]:.4f} -> {found[-1]:.4f}, on {strategy.num_replicas_in_sync} replicas")
print("largest difference:", np.abs(np.subtract(found, expected)).max())
np.testing.assert_allclose(found, expected, rtol=1e-3)

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(expected, label="one device, nnx.jit", linewidth=4, alpha=0.4)
axes.plot(found, label="4 replicas", linewidth=1)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## Evaluation, and use without the strategy
#
# `mr.unmirror(model)` returns an ordinary NNX model, whose parameters are plain arrays. Use it for evaluation, for
# `nnx.jit` and to save the model with other tools.

# %%
plain = mr.unmirror(model)
accuracy = float((nnx.jit(lambda model, x: model(x))(plain, test[0]).argmax(1) == test[1]).mean())
print(f"test accuracy {accuracy:.3f}")

# %% [markdown]
# ## Dropout and batch statistics
#
# The state of an NNX model that is not a parameter follows these rules:
#
# - `RngKey` (dropout): replica 0 draws from the key, and replica r from the key folded with r. The replicas drop
#   different units, as the rows of one large batch would.
# - `BatchStat` (`nnx.BatchNorm`): each replica normalizes by the statistics of its own part of the batch. So the losses
#   differ from those of one device, typically in the second digit. A read outside `run` returns the mean of the running
#   statistics.
#
# With `axis_name`, `nnx.BatchNorm` uses the statistics of the batches of all replicas, as one device does for the whole
# batch. Any name stands for the replicas:

# %%
with strategy.scope():
    norm = nnx.BatchNorm(64, axis_name="batch", rngs=nnx.Rngs(0))

[x] = strategy.experimental_distribute_dataset([training[0][:128]])
normalized = strategy.gather(strategy.run(norm, args=(x,)), axis=0)
np.testing.assert_allclose(normalized, nnx.BatchNorm(64, rngs=nnx.Rngs(0))(training[0][:128]), atol=1e-4)

# %% [markdown]
# The masks of a dropout layer on two replicas, for the same input:

# %%
with strategy.scope():
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

masks = strategy.run(lambda: dropout(jax.numpy.ones(12)))
for replica, mask in enumerate(strategy.experimental_local_results(masks)[:2]):
    print("replica", replica, np.asarray(mask).astype(int))

# %% [markdown]
# ## A model that exists already
#
# `mr.mirror(model)` replaces the arrays of an existing NNX model with mirrored variables, in place. Use it for a model
# that another function creates or that is loaded from a file.

# %%
loaded = Classifier(nnx.Rngs(7))
with strategy.scope():
    mr.mirror(loaded)
print(len(loaded.hidden.kernel[...].sharding.device_set), "devices hold", loaded.hidden.kernel.shape)

# %% [markdown]
# ## Accumulated gradients, and moving averages of the weights
#
# `optax.MultiSteps` in `nnx.Optimizer` accumulates gradients over micro-batches of equal size. `mr.assign` writes new
# values to the variables of a state, here in the step:

# %%
with strategy.scope():
    model, average = Classifier(nnx.Rngs(0)), Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.MultiSteps(optax.adam(3e-3), every_k_schedule=2), wrt=nnx.Param)


def averaging_step(x, y):
    loss = replica_step(x, y)
    weights, averages = (mr.unmirror(nnx.state(one, nnx.Param)) for one in (model, average))
    mr.assign(nnx.state(average, nnx.Param), jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, averages, weights))
    return loss


@mr.function
def accumulating_step(x, y):
    return strategy.reduce("SUM", strategy.run(averaging_step, args=(x, y)), axis=None)


# %% [markdown]
# ## Checkpoint and resume
#
# A checkpoint takes the model, the optimizer and the iterator of the dataset. A program that starts again creates the
# same objects and restores them; the losses of the next steps are equal to the bit:

# %%
import tempfile

dataset = strategy.experimental_distribute_dataset(list(batches(20)))
iterator = iter(dataset)
checkpoint = mr.checkpoint.Checkpoint(model=model, optimizer=optimizer, average=average, data=iterator)
for _ in range(6):
    accumulating_step(*next(iterator))
path = checkpoint.save(tempfile.mkdtemp() + "/trained")
uninterrupted = [float(accumulating_step(*next(iterator))) for _ in range(4)]
checkpoint.restore(path)
resumed = [float(accumulating_step(*next(iterator))) for _ in range(4)]
print(resumed)
assert resumed == uninterrupted

# %% [markdown]
# ## Next
#
# - [Mixed precision, and evaluation on all replicas with `nnx.metrics`](cookbook.py)
# - [The rules for Keras, NNX and Equinox](../frameworks.md)
# - [Several workers, with a failure and a recovery](several_workers.py)
