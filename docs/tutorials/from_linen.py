# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a Flax Linen TrainState
#
# A Linen training loop passes its state through the step: `state, loss = step(state, batch)`. This tutorial moves such
# a loop to 4 replicas in two ways: with the state as an argument and a result, and with the state in variables. Both
# give the losses of one device.

# %%
import mirrored as mr

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import functools
import tempfile
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.data / 16).astype(np.float32)
labels = digits.target.astype(np.int32)


def batches(steps, size=128):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.choice(len(images), size, replace=False)
        yield images[rows], labels[rows]


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(48)(x)))


def new_state():
    model = Classifier()
    params = model.init(jax.random.key(0), jnp.ones((1, 64)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(3e-3))


def losses_of(state, params, x, y):
    logits = state.apply_fn({"params": params}, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


# %% [markdown]
# ## On one device


# %%
@jax.jit
def single_device_step(state, x, y):
    loss, gradients = jax.value_and_grad(lambda params: losses_of(state, params, x, y).mean())(state.params)
    return state.apply_gradients(grads=gradients), loss


state = new_state()
expected = []
for x, y in batches(60):
    state, loss = single_device_step(state, x, y)
    expected.append(float(loss))
print(f"loss {expected[0]:.4f} -> {expected[-1]:.4f}")

# %% [markdown]
# ## The state as an argument and a result
#
# The step keeps its form. Three things are new:
#
# ```diff
#  def replica_step(state, x, y):
# -    loss, gradients = jax.value_and_grad(lambda params: losses_of(state, params, x, y).mean())(state.params)
# +    loss, gradients = jax.value_and_grad(
# +        lambda params: mr.losses.average_loss(losses_of(state, params, x, y))
# +    )(state.params)
# +    gradients = mr.get_replica_context().all_reduce("SUM", gradients)
#      return state.apply_gradients(grads=gradients), loss
#
# +@mr.function
# +def train_step(state, x, y):
# +    state, loss = strategy.run(replica_step, args=(state, x, y), out_specs=(P(), P("replica")))
# +    return state, strategy.reduce("SUM", loss, axis=None)
# ```
#
# `out_specs` declares which results are replicated, as in `jax.shard_map`: the state is equal on all replicas (`P()`),
# and the loss is not (`P("replica")`). The library checks the declaration while it traces the step.

# %%
strategy = mr.MirroredStrategy()


def replica_step(state, x, y):
    def loss_of(params):
        return mr.losses.average_loss(losses_of(state, params, x, y))

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    gradients = mr.get_replica_context().all_reduce("SUM", gradients)
    return state.apply_gradients(grads=gradients), loss


@mr.function
def train_step(state, x, y):
    state, loss = strategy.run(replica_step, args=(state, x, y), out_specs=(P(), P("replica")))
    return state, strategy.reduce("SUM", loss, axis=None)


state = new_state()
functional = []
for x, y in strategy.experimental_distribute_dataset(list(batches(60))):
    state, loss = train_step(state, x, y)
    functional.append(float(loss))
print(f"loss {functional[0]:.4f} -> {functional[-1]:.4f}, on {strategy.num_replicas_in_sync} replicas")
print("largest difference:", np.abs(np.subtract(functional, expected)).max())
np.testing.assert_allclose(functional, expected, rtol=1e-3)

# %% [markdown]
# ## A forgotten all-reduce
#
# Without the `all_reduce`, each replica would train its own model. The declaration `P()` is then false, and the step is
# refused:


# %%
def without_all_reduce(state, x, y):
    def loss_of(params):
        return mr.losses.average_loss(losses_of(state, params, x, y))

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


@mr.function
def wrong_step(state, x, y):
    return strategy.run(without_all_reduce, args=(state, x, y), out_specs=(P(), P("replica")))


batch = next(iter(strategy.experimental_distribute_dataset(list(batches(1)))))
try:
    wrong_step(new_state(), *batch)
except mr.errors.MirroredError as error:
    print(type(error).__name__)
    print(error)
else:
    raise AssertionError("the step was accepted")

# %% [markdown]
# ## Batch statistics, dropout and evaluation
#
# `nn.BatchNorm` keeps its running statistics in the collection `batch_stats`, which becomes a field of the state. With
# `axis_name`, it normalizes in `run` by the statistics of the batches of all replicas, as one device does for the whole
# batch. Any name stands for the replicas. So the losses are those of one device, and the new statistics are equal on
# all replicas, as `P()` requires:


# %%
class Normalized(nn.Module):
    axis_name: str | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, training):
        x = nn.Dense(48, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not training, momentum=0.9, axis_name=self.axis_name)(x)
        x = nn.Dropout(self.dropout, deterministic=not training)(nn.relu(x))
        return nn.Dense(10)(x)


class NormalizedState(TrainState):
    batch_stats: Any


def new_normalized_state(axis_name=None):
    model = Normalized(axis_name)
    variables = model.init(jax.random.key(0), jnp.ones((1, 64)), training=False)
    state = NormalizedState.create(apply_fn=model.apply, tx=optax.adam(3e-3), **variables)
    return state.replace(step=jnp.zeros((), jnp.int32))  # Python numbers of a state are not restored.


def normalized_step(state, x, y, key, mean=jnp.mean, reduced=lambda gradients: gradients):
    def loss_of(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        rngs = {"dropout": jax.random.fold_in(key, state.step)}
        logits, updated = state.apply_fn(variables, x, training=True, mutable=["batch_stats"], rngs=rngs)
        return mean(optax.softmax_cross_entropy_with_integer_labels(logits, y)), updated["batch_stats"]

    (loss, batch_stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=reduced(gradients), batch_stats=batch_stats), loss


def normalized_replica_step(state, x, y, key):
    context = mr.get_replica_context()
    key = jax.random.fold_in(key, context.replica_id_in_sync_group)  # Other dropout masks on each replica.
    reduced = functools.partial(context.all_reduce, "SUM")
    return normalized_step(state, x, y, key, mr.losses.average_loss, reduced)


@mr.function
def normalized_train_step(state, x, y, key):
    state, loss = strategy.run(normalized_replica_step, args=(state, x, y, key), out_specs=(P(), P("replica")))
    return state, strategy.reduce("SUM", loss, axis=None)


key = jax.random.key(1)
single, state = new_normalized_state(), new_normalized_state("batch")
on_one_device, on_replicas = [], []
for x, y in batches(60):
    single, loss = jax.jit(normalized_step)(single, x, y, key)
    on_one_device.append(float(loss))
for x, y in strategy.experimental_distribute_dataset(list(batches(60))):
    state, loss = normalized_train_step(state, x, y, key)
    on_replicas.append(float(loss))
print(f"one device: loss {on_one_device[-1]:.4f}, {strategy.num_replicas_in_sync} replicas: {on_replicas[-1]:.4f}")
np.testing.assert_allclose(on_replicas, on_one_device, rtol=1e-2)

# %% [markdown]
# Without `axis_name`, each replica normalizes by the statistics of its own part of the batch, so the losses differ from
# those of one device, and the step must make the new statistics equal: `context.all_reduce("MEAN", batch_stats)`.
#
# The replicas draw other dropout masks than one device. To compare the losses, set the rate to 0, as here.
#
# An evaluation needs no `all_reduce`: `strategy.reduce` sums what the replicas return. With `last_batch="pad"` the
# last, smaller batch has the shape of the others, and a mask leaves out the added rows:


# %%
def replica_evaluation(state, x, y, mask):
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, x, training=False)
    return jnp.sum((logits.argmax(1) == y) & mask)


@mr.function
def right_answers(state, x, y, mask):
    return strategy.reduce("SUM", strategy.run(replica_evaluation, args=(state, x, y, mask)), axis=None)


parts = [(images[i : i + 500], labels[i : i + 500]) for i in range(0, len(images), 500)]
padded = strategy.experimental_distribute_dataset(parts, mr.data.InputOptions(last_batch="pad"))
right = sum(int(right_answers(state, x, y, mask)) for (x, y), mask in padded)
print(f"accuracy {right / len(images):.3f} on {len(images)} examples")

# %% [markdown]
# ## Checkpoint and resume
#
# A state that is an argument and a result is new after each step, so assign it to the checkpoint before you save. A
# program that starts again restores a state of the same structure:

# %%
checkpoint = mr.checkpoint.Checkpoint(state=state, epoch=1)
path = checkpoint.save(tempfile.mkdtemp() + "/trained")
started_again = mr.checkpoint.Checkpoint(state=new_normalized_state("batch"), epoch=0)
started_again.restore(path).assert_consumed()
print("epoch", started_again.epoch, "step", started_again.state.step)
jax.tree.map(np.testing.assert_array_equal, started_again.state.params, state.params)

# %% [markdown]
# ## The state in variables
#
# With variables, the step needs no state argument, and other parts of the program (checkpoints, callbacks) can read the
# state at any time. `mr.mirror` replaces each array of the state with a variable; `step` becomes an array first,
# because Python numbers are not mirrored.

# %%
with strategy.scope():
    state = mr.mirror(new_state().replace(step=jnp.zeros((), jnp.int32)))


def replica_step_on_variables(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(losses_of(state, mr.unmirror(state.params), x, y))
    gradients = mr.get_replica_context().all_reduce("SUM", tape.gradient(loss, state.params))
    mr.assign(state, mr.unmirror(state).apply_gradients(grads=gradients))
    return loss


@mr.function
def train_step_on_variables(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step_on_variables, args=(x, y)), axis=None)


dataset = strategy.experimental_distribute_dataset(list(batches(60)))
in_variables = [float(train_step_on_variables(x, y)) for x, y in dataset]
print(f"loss {in_variables[0]:.4f} -> {in_variables[-1]:.4f}, step {state.step.numpy()}")
np.testing.assert_allclose(in_variables, expected, rtol=1e-3)

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(expected, label="one device, jax.jit", linewidth=5, alpha=0.3)
axes.plot(functional, label="4 replicas, state as argument", linewidth=2)
axes.plot(in_variables, "--", label="4 replicas, state in variables", linewidth=1, color="black")
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## Next
#
# - [Functional state for optax, NNX and Equinox](../frameworks.md)
# - [Finding a wrong result](wrong_results.py)
