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
