# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own reduction, optimizer and data source
#
# Three parts of a training step can be replaced without changes to the library: how values are reduced over the
# replicas, how an optimizer computes its update, and where batches come from. This tutorial writes one of each.

# %%
import mirrored as mr

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

random = np.random.default_rng(0)
true_w = np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32)
x = random.normal(size=(40, 64, 4)).astype(np.float32)
y = x @ true_w + 0.1 * random.normal(size=(40, 64, 1)).astype(np.float32)


def train(strategy, optimizer, dataset, reduced=lambda gradient: gradient):
    """The loss of each step, and the weights."""
    with strategy.scope():
        w = mr.Variable(jnp.zeros((4, 1)), name="w")

    def replica_step(x, y):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(((x @ w - y) ** 2)[:, 0])
        optimizer.apply_gradients([(reduced(tape.gradient(loss, w)), w)])
        return loss

    @mr.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    losses = [float(step(*batch)) for batch in strategy.experimental_distribute_dataset(dataset)]
    return losses, w.numpy().ravel()


data = list(zip(x, y, strict=True))
plain, _ = train(mr.MirroredStrategy(), mr.optimizers.SGD(0.05), data)
print(f"loss {plain[0]:.4f} -> {plain[-1]:.4f}")

# %% [markdown]
# ## A reduction that tolerates an outlier
#
# A `ReduceOp` maps the components of all replicas, stacked as `[replicas, ...]`, to one value. This one drops the
# component with the largest norm. (`mr.collectives` has `Median`, `TrimmedMean` and `Adasum`.) A reduction needs
# equality and a hash, because it is part of the cache key of compiled programs: a frozen dataclass has both.


# %%
@dataclasses.dataclass(frozen=True)
class WithoutLargest(mr.ReduceOp):
    """The mean of all components but the `count` largest by norm."""

    count: int = 1

    def __call__(self, per_replica):
        norms = jnp.sqrt(jnp.sum(per_replica**2, axis=tuple(range(1, per_replica.ndim))))
        kept = jnp.argsort(norms)[: len(norms) - self.count]
        return jnp.mean(per_replica[kept], axis=0)


# %% [markdown]
# Here the last replica gets damaged examples: its labels are 50 times too large. The optimizer must not sum the
# gradients again, so the step reduces them first, and divides by the number of replicas, over which the optimizer will
# sum.

# %%
damaged = [(x, np.concatenate([y[:48], 50 * y[48:]])) for x, y in data]


def robust(gradient):
    context = mr.get_replica_context()
    # `average_loss` gave each replica its part of the mean: 4 times that is the mean gradient of one replica.
    return context.all_reduce(WithoutLargest(), 4 * gradient) / context.num_replicas_in_sync


print("true weights:  ", true_w.ravel())
for name, reduced in (("sum", lambda gradient: gradient), ("WithoutLargest", robust)):
    _, weights = train(mr.MirroredStrategy(), mr.optimizers.SGD(0.05), damaged, reduced)
    print(f"{name + ':':15}", weights.round(2))
assert np.abs(weights - true_w.ravel()).max() < 0.1

# %% [markdown]
# ## An all-reduce that sends 16 bits
#
# A `CrossDeviceOps` is the algorithm of sums. Its method `sum` is traced into the program of each device. It gets, for
# each array, the components of the device's replicas, and returns the sum once per replica. This algorithm sends the
# sums of each device as bfloat16, half the bytes of float32, and adds them in float32.


# %%
@dataclasses.dataclass(frozen=True)
class In16Bits(mr.collectives.CrossDeviceOps):
    """Sends each device's sums as bfloat16; adds them in float32."""

    def sum(self, arrays, group):
        results = []
        for components in arrays:
            total = sum(components[1:], start=components[0])
            if group.axis is not None:
                sent = jax.lax.all_gather(total.astype(jnp.bfloat16), group.axis)
                total = jnp.sum(sent.astype(total.dtype), axis=0)
            results.append([total] * group.local)
        return results


in_16_bits, _ = train(mr.MirroredStrategy(cross_device_ops=In16Bits()), mr.optimizers.SGD(0.05), data)
print(f"loss {in_16_bits[0]:.4f} -> {in_16_bits[-1]:.4f}")
print(f"largest relative difference to float32: {np.abs(np.divide(in_16_bits, plain) - 1).max():.4f}")

# %% [markdown]
# The replication check knows that an `all_gather` followed by a sum is equal on all devices, so the update is accepted.
# An algorithm that returned different values on different devices would be refused.
#
# ## An optimizer
#
# An optimizer is an `optax.GradientTransformation`. `mr.optimizers.Optimizer` gives it mirrored state, sums the
# gradients and clips. This one takes the sign of a running mean of the gradients, as Lion does without its second
# coefficient.


# %%
def sign_of_mean(learning_rate, decay=0.9):
    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(gradients, means, params=None):
        means = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, means, gradients)
        return jax.tree.map(lambda m: -learning_rate * jnp.sign(m), means), means

    return optax.GradientTransformation(init, update)


optimizer = mr.optimizers.Optimizer(sign_of_mean, learning_rate=0.1)
signs, _ = train(mr.MirroredStrategy(), optimizer, data)
print(f"loss {signs[0]:.4f} -> {signs[-1]:.4f}")
print("its variables:", [f"{v.name} {v.shape}" for v in optimizer.variables])

# %% [markdown]
# The learning rate is a variable: it can be changed between steps without a new compilation.

# %%
optimizer.learning_rate = 0.01
print("learning rate", optimizer.learning_rate.numpy())

# %% [markdown]
# ## A data source
#
# Any object that can be iterated again is a dataset of global batches: a list, a class with `__iter__`, a Grain
# dataset, a PyTorch `DataLoader`, a Hugging Face dataset. This one computes its batches:


# %%
class Simulation:
    """Batches of a random process, the same in each epoch."""

    def __init__(self, steps):
        self.steps = steps

    def __iter__(self):
        random = np.random.default_rng(5)
        for _ in range(self.steps):
            x = random.normal(size=(64, 4)).astype(np.float32)
            yield x, x @ true_w


simulated, _ = train(mr.MirroredStrategy(), mr.optimizers.SGD(0.05), Simulation(40))
print(f"loss {simulated[0]:.4f} -> {simulated[-1]:.6f}")

# %% [markdown]
# Its position can be saved and restored: `get_state` returns how many elements were read, and `set_state` reads them
# again. Put the iterator into a `Checkpoint` for that.

# %%
strategy = mr.MirroredStrategy()
iterator = iter(strategy.experimental_distribute_dataset(Simulation(5)))
next(iterator), next(iterator)
position = iterator.get_state()
third = np.concatenate([np.asarray(part) for part in strategy.experimental_local_results(next(iterator)[0])])
other = iter(strategy.experimental_distribute_dataset(Simulation(5)))
other.set_state(position)
again = np.concatenate([np.asarray(part) for part in strategy.experimental_local_results(next(other)[0])])
np.testing.assert_array_equal(third, again)
print("the restored iterator goes on with the third batch")
iterator.close()
other.close()

# %% [markdown]
# A source of single examples becomes a dataset with `mr.data.Dataset.from_generator`, which has shuffling, batching and
# parallel `map`:

# %%
examples = mr.data.Dataset.from_generator(lambda: ((row, row @ true_w) for row in x.reshape(-1, 4)))
batched = examples.shuffle(512, seed=0).batch(64)
generated, _ = train(mr.MirroredStrategy(), mr.optimizers.SGD(0.05), batched)
print(f"{len(generated)} steps, loss {generated[0]:.4f} -> {generated[-1]:.4f}")

# %%
figure, axes = plt.subplots(figsize=(6, 3))
for name, losses in (
    ("SGD, float32", plain),
    ("SGD, sums sent as 16 bits", in_16_bits),
    ("sign of mean", signs),
    ("own data source", simulated),
):
    axes.plot(losses, label=name)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend(fontsize="small")
figure.tight_layout()

# %% [markdown]
# ## Next
#
# - [Collectives](../reference/collectives.rst), [optimizers](../reference/optimizers.rst) and
#   [data](../reference/data.rst) in the reference
