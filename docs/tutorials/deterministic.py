# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Deterministic training
#
# Floating-point addition is not associative: `(a + b) + c` and `a + (b + c)` can differ in the last bit. The same
# training on 1, 2 and 4 devices therefore differs in the last bits, and after some hundred steps in more. With
# `deterministic=True` the results have the same bits on every number of devices. This tutorial shows both.

# %%
import mirrored as mr

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.data / 16).astype(np.float32)
labels = digits.target.astype(np.int32)


def batches(steps, size=128):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.choice(len(images), size, replace=False)
        yield images[rows], labels[rows]


def new_params():
    rng = np.random.default_rng(1)
    return {
        "hidden": jnp.asarray(rng.normal(size=(64, 64)) / 8, jnp.float32),
        "out": jnp.asarray(rng.normal(size=(64, 10)) / 8, jnp.float32),
    }


# %% [markdown]
# ## One training on 1, 2 and 4 devices
#
# The number of replicas is 4 in each case: replicas are logical, and `num_replicas` sets their number. One device runs
# four of them, two devices run two each.


# %%
def train(num_devices, deterministic, steps=80):
    devices = jax.devices()[:num_devices]
    strategy = mr.MirroredStrategy(devices, num_replicas=4, deterministic=deterministic)
    with strategy.scope():
        params = mr.mirror(new_params())
        optimizer = mr.optimizers.Adam(1e-2)

    def replica_step(x, y):
        with mr.GradientTape() as tape:
            logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
            loss = mr.losses.average_loss(optax.softmax_cross_entropy_with_integer_labels(logits, y))
        optimizer.apply(tape.gradient(loss, params), params)
        return loss

    @mr.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    losses, history = [], []
    for x, y in strategy.experimental_distribute_dataset(list(batches(steps))):
        losses.append(float(step(x, y)))
        history.append(params["out"].numpy())
    return losses, np.array(history)


def differing_bits(one, other):
    return int((one.view(np.int32) != other.view(np.int32)).sum())


# %%
default = {n: train(n, deterministic=False) for n in (1, 2, 4)}
fixed = {n: train(n, deterministic=True) for n in (1, 2, 4)}
for n in (2, 4):
    print(
        f"{n} devices beside 1 device, weights that differ after the last step:",
        f"default {differing_bits(default[n][1][-1], default[1][1][-1])} of 640,",
        f"deterministic {differing_bits(fixed[n][1][-1], fixed[1][1][-1])} of 640",
    )
    np.testing.assert_array_equal(fixed[n][1], fixed[1][1])
    np.testing.assert_array_equal(fixed[n][0], fixed[1][0])

# %%
figure, axes = plt.subplots(figsize=(6, 3))
for n in (2, 4):
    for name, runs, style in (("default", default, "-"), ("deterministic", fixed, "--")):
        difference = np.abs(runs[n][1] - runs[1][1]).max(axis=(1, 2))
        axes.plot(difference, style, label=f"{name}, {n} devices")
axes.set(xlabel="step", ylabel="largest difference\nto one device")
axes.set_yscale("symlog", linthresh=1e-9)
axes.legend(fontsize="small")
figure.tight_layout()

# %% [markdown]
# The differences of the default are small, and they grow. They are no error: each run is a correct rounding of the same
# training. They make it impossible to compare two runs bit for bit, for example to find out whether a change of the
# program or a fault of the hardware changed a result.
#
# ## How it works
#
# - Each replica computes on its own part of the batch in a program of the same shape, however many replicas share its
#   device.
# - Sums over the replicas use a balanced binary tree over the replica indices: replicas 0 and 1, replicas 2 and 3, then
#   both sums. The order does not depend on the devices.
# - Fusion boundaries keep XLA from combining operations of different replicas, which would change the rounding.
# - On CPUs each product is rounded before it is added: LLVM would contract some products with sums, and which ones
#   depends on the kernel.
#
# ![The same tree of sums on four devices, two and one](../figures/replicas.svg)
#
# ## What it requires
#
# The number of *replicas* must stay the same: a batch that is divided into 8 parts is rounded differently from one that
# is divided into 4. JAX, jaxlib and the type of the device must stay the same, too. The program must draw its random
# numbers from keys and its data from seeded shuffles.
#
# Keras' `fit` is an exception: with `deterministic=True` it computes the whole batch on the first device, so that its
# losses have the bits of Keras without a strategy, with any number of replicas.
#
# ## A repetition has the same bits
#
# Two runs on the same devices are bit-identical. `mirrored.testing` has an assertion for it:

# %%
again = train(4, deterministic=True)
mr.testing.assert_same_bits({"out": again[1][-1]}, {"out": fixed[4][1][-1]})
print("same bits in", again[1][-1].size, "weights after", len(again[0]), "steps")

# %% [markdown]
# The assertion names the first difference:

# %%
changed = again[1][-1].copy()
changed[3, 2] = np.nextafter(changed[3, 2], np.float32(1))
try:
    mr.testing.assert_same_bits({"out": changed}, {"out": again[1][-1]})
except AssertionError as error:
    print(error)

# %% [markdown]
# ## What it costs
#
# On 2, 4 or 8 devices the fixed order of the sums needs log2(devices) exchanges between pairs of devices instead of one
# all-reduce, and the fusion boundaries keep XLA from some optimizations. [Performance](../performance.md) has the
# measured cost per model.
#
# ## Next
#
# - [The tested guarantees](../guarantees.md)
# - [Several workers, with a failure and a recovery](several_workers.py)
