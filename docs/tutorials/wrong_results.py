# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Finding a wrong result
#
# A data-parallel program can train and still be wrong: the replicas train different models, the step is N times too
# large, or the replicas drop the same units. This tutorial makes such mistakes on purpose, and shows which tool finds
# each of them.

# %%
import mirrored as mr

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

random = np.random.default_rng(0)
x = random.normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([[1.0], [-2.0], [3.0]], np.float32)

strategy = mr.MirroredStrategy()
with strategy.scope():
    w = mr.Variable(jnp.zeros((3, 1)), name="w")
    optimizer = mr.optimizers.SGD(0.1)
batch = next(iter(strategy.experimental_distribute_dataset([(x, y)])))


def gradient_of(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(((x @ w - y) ** 2)[:, 0])
    return loss, tape.gradient(loss, w)


def warnings_of(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    assert caught, "no warning"
    for warning in caught:
        print(f"{warning.category.__name__}: {warning.message}")


def error_of(function, *args):
    try:
        function(*args)
    except mr.errors.MirroredError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError("no error")


# %% [markdown]
# ## Start with one device
#
# The first question about any wrong result is whether the mistake is in the distribution. Run the same program on one
# replica. If the result is still wrong, look at the model and the data. If the losses of step 1 differ, look at the
# loss and its scale. If they differ from step 2 on, look at the update.


# %%
def losses(strategy, steps=3):
    with strategy.scope():
        w = mr.Variable(jnp.zeros((3, 1)))
        optimizer = mr.optimizers.SGD(0.1)

    def replica_step(x, y):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(((x @ w - y) ** 2)[:, 0])
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    step = mr.function(lambda x, y: strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None))
    return [float(step(*batch)) for batch in strategy.experimental_distribute_dataset([(x, y)] * steps)]


print("1 replica: ", losses(mr.MirroredStrategy(["CPU:0"])))
print("4 replicas:", losses(strategy))
np.testing.assert_allclose(losses(strategy), losses(mr.MirroredStrategy(["CPU:0"])), rtol=1e-5)

# %% [markdown]
# ## The replicas train different models
#
# Each replica assigns its own gradient. The **replication check** refuses the step while it is traced, and shows the
# path by which the value became different:


# %%
def own_gradient(x, y):
    _, gradient = gradient_of(x, y)
    w.assign_sub(0.1 * gradient)


error_of(lambda: strategy.run(mr.function(own_gradient), args=batch))

# %% [markdown]
# With state that is an argument and a result, the copies are per-replica values by default. If such a value is passed
# to the same function again, the library emits a **`DivergingStateWarning`**:


# %%
def functional_step(weights, x, y):
    gradient = jax.grad(lambda weights: mr.losses.average_loss(((x @ weights - y) ** 2)[:, 0]))(weights)
    return weights - 0.1 * gradient


def diverging_loop():
    weights = np.zeros((3, 1), np.float32)
    for _ in range(2):
        weights = strategy.run(functional_step, args=(weights, *batch))


warnings_of(diverging_loop)


# %% [markdown]
# `out_specs=P()` declares the result as replicated, and the step needs an `all_reduce`:


# %%
def right_step(weights, x, y):
    gradient = jax.grad(lambda weights: mr.losses.average_loss(((x @ weights - y) ** 2)[:, 0]))(weights)
    return weights - 0.1 * mr.get_replica_context().all_reduce("SUM", gradient)


weights = np.zeros((3, 1), np.float32)
for _ in range(2):
    weights = strategy.run(right_step, args=(weights, *batch), out_specs=P())
print("weights", np.asarray(weights).ravel())

# %% [markdown]
# ## The step is N times too large
#
# `jnp.mean` averages over the examples of one replica, and the optimizer sums over the replicas. A
# **`LossScaleWarning`** finds this in compiled steps:


# %%
def mean_step(x, y):
    with mr.GradientTape() as tape:
        loss = jnp.mean((x @ w - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    return loss


warnings_of(lambda: strategy.run(mr.function(mean_step), args=batch))

# %% [markdown]
# To turn a category into an error, for example in tests:
#
# <!-- excerpt: a filter for the reader's own tests, which would turn the next cells' warnings into errors -->
#
# ```python
# warnings.simplefilter("error", mr.errors.LossScaleWarning)
# ```
#
# ## The replicas draw the same random numbers
#
# A key that is a plain argument is the same on all replicas. There is no warning, because equal numbers are right for
# noise on the weights. Look at the components of a per-replica value:


# %%
def mask(key):
    return jax.random.bernoulli(key, 0.5, (8,)).astype(int)


def own_mask(key):
    replica = mr.get_replica_context().replica_id_in_sync_group
    return mask(jax.random.fold_in(key, replica))


for function in (mask, own_mask):
    print(function.__name__)
    for one in strategy.experimental_local_results(strategy.run(function, args=(jax.random.key(0),))):
        print("  ", np.asarray(one))

# %% [markdown]
# ## Are the copies equal?
#
# `mirrored.testing.assert_copies_equal` compares the bits of all copies of all variables in a tree. Programs of this
# library cannot make them differ; a fault of a device can, or code that writes to a buffer of JAX. Call it in tests and
# every some thousand steps:

# %%
mr.testing.assert_copies_equal({"w": w})
print("all copies of w are equal")

# %% [markdown]
# To see what it reports, this variable gets an array whose copies differ, past all checks:

# %%
sharding = w.read_value().sharding
copies = [jax.device_put(np.full((3, 1), float(i == 2), np.float32), device) for i, device in enumerate(jax.devices())]
with strategy.scope():
    broken = mr.Variable(jax.make_array_from_single_device_arrays((3, 1), sharding, copies), name="broken")
try:
    mr.testing.assert_copies_equal([broken])
except AssertionError as error:
    print(error)

# %% [markdown]
# ## Where does the value come from?
#
# Run the step eagerly: each replica runs as plain Python, so `print`, `pdb` and `np.isnan` see its values.

# %%
mr.config.run_functions_eagerly(True)


@mr.function
def printed(x, y):
    loss, gradient = gradient_of(x, y)
    replica = mr.get_replica_context().replica_id_in_sync_group
    print(f"replica {replica}: loss {float(loss):.4f}, gradient {np.asarray(gradient).ravel().round(3)}")


strategy.run(printed, args=batch)
mr.config.run_functions_eagerly(False)

# %% [markdown]
# ## A job that hangs
#
# Across workers, the **watchdog** compares the operations that each worker has reached, and ends the job with the lines
# of the calls that do not match; see [the table of failures](../guides/multi_worker.md). Replicas of one process that
# call different collectives are refused, in an eager run with a `MergeError`:


# %%
def only_replica_0(x, y):
    context = mr.get_replica_context()
    if context.replica_id_in_sync_group == 0:
        context.all_reduce("SUM", x)


error_of(lambda: strategy.run(only_replica_0, args=batch))


# %% [markdown]
# and in a compiled function by the replication check:


# %%
@mr.function
def mismatched(x, y):
    def replica_step(x, y):
        context = mr.get_replica_context()
        return jax.lax.cond(
            context.replica_id_in_sync_group == 0, lambda: context.all_reduce("SUM", x), lambda: jnp.zeros_like(x)
        )

    return strategy.run(replica_step, args=(x, y))


error_of(mismatched, *batch)

# %% [markdown]
# ## Is it the machine?
#
# `mirrored doctor` checks devices and versions; for several workers also clocks, the rendezvous and the all-reduce
# between neighbours; with `--checkpoints` also the disk:

# %%
done = subprocess.run(
    [sys.executable, "-m", "mirrored.cli", "doctor"], capture_output=True, text=True, timeout=120, check=False
)
print("\n".join(line for line in done.stdout.splitlines() if "/" not in line))
print("exit status", done.returncode)

# %% [markdown]
# ## Which tool finds what
#
# | mistake | found by | when |
# |---|---|---|
# | a replica assigns its own value to a mirrored variable | `ReplicaDivergenceError` | at trace time, eager by bits |
# | functional state without `out_specs` | `DivergingStateWarning` | second call |
# | a mean over one replica's examples | `LossScaleWarning`, Keras: `LossReductionWarning` | at trace time, compiled |
# | gradients that are summed over the replicas twice | `LossScaleWarning` | at trace time, compiled |
# | a variable outside every scope is updated | `OutOfScopeWarning` | at trace time, compiled; Keras: also eager |
# | `MirroredStrategy` in one of several processes | `IndependentProcessesWarning` | when the strategy is created |
# | collectives that only some replicas call | replication check, `MergeError` | at trace time |
# | collectives that only some workers call | watchdog | within seconds if the mismatch is certain |
# | a device that computes wrongly | `assert_copies_equal`; a second, deterministic run | when you call it |
# | clipping before the all-reduce; equal random numbers | nothing: compare with one replica | - |
#
# ## Next
#
# - [Troubleshooting by symptom](../troubleshooting.md)
# - [Errors and warnings](../errors.md)
