# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From pmap or PyTorch DDP
#
# In `jax.pmap` and in PyTorch's `DistributedDataParallel` (DDP), as here, every device has a copy of the model,
# computes the gradients of its part of the batch, and the gradients are averaged. This tutorial runs a `pmap` program
# and its translation side by side, and shows the translation of a DDP program.

# %%
import mirrored as mr

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

DEVICES, BATCH, STEPS = 4, 64, 40
random = np.random.default_rng(0)
x = random.normal(size=(STEPS, BATCH, 16)).astype(np.float32)
y = np.tanh(x[..., :1] - 2 * x[..., 1:2] * x[..., 2:3])
start = {
    "hidden": (random.normal(size=(16, 32)) / 4).astype(np.float32),
    "out": (random.normal(size=(32, 1)) / 6).astype(np.float32),
}


def losses_of(params, x, y):
    return ((jnp.tanh(x @ params["hidden"]) @ params["out"] - y) ** 2)[:, 0]


# %% [markdown]
# ## The pmap program
#
# The caller replicates the parameters, divides each batch, and reads the result of device 0.

# %%
transform = optax.sgd(0.1)


@functools.partial(jax.pmap, axis_name="devices")
def pmap_step(params, state, x, y):
    loss, gradients = jax.value_and_grad(lambda params: losses_of(params, x, y).mean())(params)
    gradients = jax.lax.pmean(gradients, "devices")
    updates, state = transform.update(gradients, state)
    return optax.apply_updates(params, updates), state, jax.lax.pmean(loss, "devices")


params = jax.tree.map(lambda a: np.stack([a] * DEVICES), start)
state = jax.tree.map(lambda a: np.stack([a] * DEVICES), transform.init(start))
by_pmap = []
for step in range(STEPS):
    parts = [a[step].reshape(DEVICES, BATCH // DEVICES, -1) for a in (x, y)]
    params, state, loss = pmap_step(params, state, *parts)
    by_pmap.append(float(loss[0]))
print(f"loss {by_pmap[0]:.6f} -> {by_pmap[-1]:.6f}")

# %% [markdown]
# ## The same program here
#
# | pmap | mirrored |
# |---|---|
# | stack the parameters `[devices, ...]` | create variables in `strategy.scope()` |
# | reshape each batch to `[devices, batch / devices, ...]` | `strategy.experimental_distribute_dataset` |
# | `jax.pmap(step, axis_name=...)` | `strategy.run(replica_step)` in a `mr.function` |
# | `jax.value_and_grad` | `GradientTape`, or `jax.value_and_grad` as before |
# | `lax.pmean(gradients)`, which the step must not forget | the optimizer sums the gradients |
# | `lax.pmean(loss)`, `loss[0]` | `strategy.reduce` |
# | the batch must be divisible by the number of devices | any batch size: the loss is the mean over the global batch |

# %%
strategy = mr.MirroredStrategy()
with strategy.scope():
    params = mr.mirror(start)
    optimizer = mr.optimizers.Optimizer(optax.sgd(0.1))


def replica_step(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(losses_of(mr.unmirror(params), x, y))
    optimizer.apply(tape.gradient(loss, params), params)
    return loss


@mr.function
def train_step(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)


dataset = strategy.experimental_distribute_dataset(list(zip(x, y, strict=True)))
found = [float(train_step(*batch)) for batch in dataset]
print(f"loss {found[0]:.6f} -> {found[-1]:.6f}")
np.testing.assert_allclose(found, by_pmap, rtol=1e-4)

# %% [markdown]
# ## From pmap without variables
#
# A `lax.psum` or `lax.pmean` that is left in a function that `run` calls raises `ContextError`, on any number of
# devices: the replicas are not a mesh axis, and the message names the method that takes the place of each collective.
#
# The step may also keep its functional form. `lax.pmean` becomes `all_reduce`, and `out_specs` declares the new
# parameters as replicated:

# %%
from jax.sharding import PartitionSpec as P


def functional_step(params, x, y):
    loss, gradients = jax.value_and_grad(lambda params: losses_of(params, x, y).mean())(params)
    gradients = mr.get_replica_context().all_reduce("MEAN", gradients)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


@mr.function
def functional_train_step(params, x, y):
    params, loss = strategy.run(functional_step, args=(params, x, y), out_specs=(P(), P("replica")))
    return params, strategy.reduce("MEAN", loss, axis=None)


params, functional = start, []
for batch in strategy.experimental_distribute_dataset(list(zip(x, y, strict=True))):
    params, loss = functional_train_step(params, *batch)
    functional.append(float(loss))
np.testing.assert_allclose(functional, by_pmap, rtol=1e-4)
print(f"loss {functional[0]:.6f} -> {functional[-1]:.6f}")

# %% [markdown]
# ## A DDP program
#
# This is the same training in PyTorch, one process per device (`torchrun --nproc-per-node 4 train.py`). This page is
# built without PyTorch, so the program is shown, not executed.
#
# <!-- excerpt: PyTorch is not installed where the site and the tests run -->
#
# ```python
# torch.distributed.init_process_group("gloo")
# rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
# model = torch.nn.Sequential(torch.nn.Linear(16, 32, bias=False), torch.nn.Tanh(), torch.nn.Linear(32, 1, bias=False))
# with torch.no_grad():
#     model[0].weight.copy_(torch.from_numpy(start["hidden"].T))
#     model[2].weight.copy_(torch.from_numpy(start["out"].T))
# model = torch.nn.parallel.DistributedDataParallel(model)
# optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# for step in range(STEPS):
#     part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
#     loss = ((model(torch.from_numpy(x[step, part])) - torch.from_numpy(y[step, part])) ** 2).mean()
#     optimizer.zero_grad()
#     loss.backward()
#     optimizer.step()
# ```
#
# | DDP | mirrored |
# |---|---|
# | one process per device; `torchrun` | one process for all devices of a machine; several with `mirrored run` |
# | `DistributedDataParallel(model)` | the model is created in `strategy.scope()` |
# | `DistributedSampler`, `sampler.set_epoch` | `experimental_distribute_dataset`: the global batch, divided |
# | the mean over each rank's batch, then over the ranks | `average_loss`: the mean over the global batch |
# | `loss.backward()`, hooks average the gradients | `tape.gradient`; the optimizer sums them: without `all_reduce` |
# | `no_sync()` for accumulation | `mr.GradientAccumulator` |
# | `find_unused_parameters=True` | not needed: a variable without a gradient gets none on every replica |
# | buffers are broadcast from rank 0 | `BatchStat`, sync-on-read variables: the mean when read outside `run` |
# | all ranks must join each collective, or the job hangs | refused at trace time; a watchdog across workers |
#
# PyTorch 2.13.0 with 4 processes and Gloo printed these losses (the mean over the ranks, every fifth step):

# %%
RECORDED = {
    **{0: 0.870217, 5: 0.393525, 10: 0.420754, 15: 0.339139},
    **{20: 0.556117, 25: 0.456096, 30: 0.458350, 35: 0.316643},
}
for step, loss in RECORDED.items():
    print(f"step {step:2d}: DDP {loss:.6f}, mirrored {found[step]:.6f}")
np.testing.assert_allclose([found[step] for step in RECORDED], list(RECORDED.values()), rtol=1e-5)

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(by_pmap, label="pmap", linewidth=5, alpha=0.3)
axes.plot(found, label="mirrored, variables", linewidth=2)
axes.plot(functional, "--", label="mirrored, functional", linewidth=1, color="black")
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## Next
#
# - [Is this for me?](../is_this_for_me.md) compares the libraries, and says when to stay with DDP or `shard_map`.
# - [Several workers, with a failure and a recovery](several_workers.py)
