# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Cookbook
#
# Short recipes for native loops, and for Flax NNX where it differs. All of them continue from the first program, and
# each is executed when this page is built. For models of Keras, `compile`, `fit` and callbacks of Keras do the same.

# %%
import mirrored as mr

mr.config.set_virtual_devices(2)  # Before JAX's first operation. Omit this line to use your GPUs.

import pathlib
import tempfile
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
training, test = (images[357:], labels[357:]), (images[:357], labels[:357])
folder = pathlib.Path(tempfile.mkdtemp())
strategy = mr.MirroredStrategy()


def batches(steps, size=96, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.choice(len(training[0]), size, replace=False) for _ in range(steps)]
    return strategy.experimental_distribute_dataset([(training[0][one], training[1][one]) for one in rows])


def new_params(seed=1):
    rng = np.random.default_rng(seed)
    hidden, out = rng.normal(size=(64, 32)) / 8, rng.normal(size=(32, 10)) / 6
    with strategy.scope():
        return mr.mirror({"hidden": jnp.asarray(hidden, jnp.float32), "out": jnp.asarray(out, jnp.float32)})


def losses_of(params, x, y):
    logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def step_of(replica_step):
    """A compiled step that returns the loss of the global batch."""
    return mr.function(lambda x, y: strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None))


def plain_step(params, optimizer):
    def replica_step(x, y):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(losses_of(params, x, y))
        optimizer.apply(tape.gradient(loss, params), params)
        return loss

    return step_of(replica_step)


params = new_params()
step = plain_step(params, mr.optimizers.Adam(1e-2))
losses = [float(step(x, y)) for x, y in batches(30)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

# %% [markdown]
# ## Mixed precision
#
# Keep the variables in float32, compute the model in bfloat16, and the loss in float32. The cast is part of what the
# tape records, so gradients arrive in float32. bfloat16 has the exponents of float32: a loss scale is not needed.


# %%
def mixed_step(x, y):
    with mr.GradientTape() as tape:
        half = {name: variable.read_value().astype(jnp.bfloat16) for name, variable in params.items()}
        logits = jnp.tanh(x.astype(jnp.bfloat16) @ half["hidden"]) @ half["out"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y)
        loss = mr.losses.average_loss(losses)
    gradients = tape.gradient(loss, params)
    optimizer.apply(gradients, params)
    return loss


params, optimizer = new_params(), mr.optimizers.Adam(1e-2)
step = step_of(mixed_step)
mixed = [float(step(x, y)) for x, y in batches(30)]
print(f"loss {mixed[0]:.5f} -> {mixed[-1]:.5f}, in float32 {losses[-1]:.5f}; parameters in {params['out'].dtype}")
np.testing.assert_allclose(mixed, losses, rtol=0.05)

# %% [markdown]
# With Keras: `keras.mixed_precision.set_global_policy("mixed_bfloat16")`.
#
# ## Mixed precision with Flax NNX
#
# Layers of NNX have two dtypes: `dtype` is that of the computation, and `param_dtype`, by default float32, that of the
# parameters. Gradients, optimizer state and batch statistics stay in float32. Only the logits are cast, for the loss.


# %%
class Classifier(nnx.Module):
    def __init__(self, rngs, dtype=jnp.float32):
        self.hidden = nnx.Linear(64, 32, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(32, momentum=0.9, axis_name="batch", dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(32, 10, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def nnx_losses_of(model, x, y):
    logits = model(x).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y), logits


def new_classifier(**settings):
    with strategy.scope():
        model = Classifier(nnx.Rngs(0), **settings)
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def nnx_step(model, optimizer, converted=lambda model: model):
    def replica_step(x, y):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(nnx_losses_of(converted(model), x, y)[0])
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))
        return loss

    return step_of(replica_step)


step = nnx_step(*new_classifier())
full = [float(step(x, y)) for x, y in batches(30)]
classifier, optimizer = new_classifier(dtype=jnp.bfloat16)
step = nnx_step(classifier, optimizer)
mixed = [float(step(x, y)) for x, y in batches(30)]
print(f"loss {mixed[-1]:.5f}, in float32 {full[-1]:.5f}; parameters in {classifier.out.kernel.dtype}")
np.testing.assert_allclose(mixed, full, rtol=0.1)

# %% [markdown]
# If the layers take no `dtype`, cast the parameters in the step, inside the tape's block. `nnx.merge` makes a model
# that computes with the casts, and shares the batch statistics and the dropout keys with the original:


# %%
def half_of(model):
    graph, params, others = nnx.split(model, nnx.Param, ...)
    return nnx.merge(graph, jax.tree.map(lambda one: one.astype(jnp.bfloat16), mr.unmirror(params)), others)


model, optimizer = new_classifier()
step = nnx_step(model, optimizer, half_of)
cast = [float(step(x, y)) for x, y in batches(30)]
print(f"loss {cast[-1]:.5f}; parameters in {model.out.kernel.dtype}")
np.testing.assert_allclose(cast, full, rtol=0.1)

# %% [markdown]
# ## Learning rate schedules
#
# A schedule is a function of the step (optax has many). The optimizer evaluates it with its own counter, `iterations`,
# which is part of its checkpoint:

# %%
schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-2, warmup_steps=5, decay_steps=30)
optimizer = mr.optimizers.Adam(schedule)
params = new_params()
step = plain_step(params, optimizer)
rates = []
for x, y in batches(30):
    rates.append(float(optimizer.learning_rate))
    loss = step(x, y)
figure, axes = plt.subplots(figsize=(5, 2))
axes.plot(rates)
axes.set(xlabel="step", ylabel="learning rate")
figure.tight_layout()

# %% [markdown]
# A rate that depends on results (reduce on plateau) is assigned between steps, without a new compilation:

# %%
optimizer = mr.optimizers.Adam(1e-2)
params = new_params()
step = plain_step(params, optimizer)
best = np.inf
for x, y in batches(20):
    loss = float(step(x, y))
    if loss > best:
        optimizer.learning_rate = 0.5 * float(optimizer.learning_rate)
    best = min(best, loss)
print(f"learning rate at the end: {float(optimizer.learning_rate):.2e}")

# %% [markdown]
# ## A moving average of the weights (EMA)
#
# The averages are mirrored variables. They are assigned in the step, after the update: the new weights are equal on all
# replicas, so the assignment is accepted.

# %%
params, averages = new_params(), new_params()
optimizer = mr.optimizers.Adam(1e-2)


def averaging_step(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(losses_of(params, x, y))
    optimizer.apply(tape.gradient(loss, params), params)
    for name, average in averages.items():
        average.assign(0.9 * average + 0.1 * params[name])
    return loss


step = step_of(averaging_step)
for x, y in batches(30):
    step(x, y)
print(f"distance of the averages from the weights: {np.abs(averages['out'].numpy() - params['out'].numpy()).max():.4f}")

# %% [markdown]
# ## Evaluation and metrics
#
# A metric is a variable that each replica updates on its own (`ON_READ`) and that is summed when it is read. The last
# batch of the test set is smaller; `last_batch="pad"` keeps all batches in one shape and adds a mask.

# %%
with strategy.scope():
    own = {"synchronization": mr.VariableSynchronization.ON_READ, "aggregation": mr.VariableAggregation.SUM}
    right = mr.Variable(0.0, trainable=False, **own)
    seen = mr.Variable(0.0, trainable=False, **own)


def evaluation_of(params):
    """A function that returns the accuracy on the test set, and the number of examples."""

    @mr.function
    def test_step(x, y, mask):
        def replica_step(x, y, mask):
            logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
            right.assign_add(jnp.sum((logits.argmax(1) == y) & mask).astype(jnp.float32))
            seen.assign_add(jnp.sum(mask).astype(jnp.float32))

        strategy.run(replica_step, args=(x, y, mask))

    def evaluate():
        right.assign(0.0)
        seen.assign(0.0)
        parts = [(test[0][i : i + 100], test[1][i : i + 100]) for i in range(0, len(test[0]), 100)]
        padded = mr.data.InputOptions(last_batch="pad")
        for (x, y), mask in strategy.experimental_distribute_dataset(parts, padded):
            test_step(x, y, mask)
        return float(right.read_value() / seen.read_value()), int(seen.read_value())

    return evaluate


evaluate = evaluation_of(params)
accuracy, count = evaluate()
print(f"accuracy {accuracy:.3f} on {count} examples")
expected = np.tanh(test[0] @ params["hidden"].numpy()) @ params["out"].numpy()
assert abs(accuracy - (expected.argmax(1) == test[1]).mean()) < 1e-6

# %% [markdown]
# `evaluation_of` takes the parameters as an argument and returns a new function. A compiled function keeps the
# variables that it read when it was traced: it would not notice that a global name now stands for another model.
#
# Metrics of Keras (`keras.metrics`) that are created in the scope behave in the same way.
#
# ## Evaluation with Flax NNX
#
# Metrics of NNX (`nnx.metrics`) that are created in the scope count on each replica, too. `mask` leaves out the
# padding, and `compute`, called outside of `run`, adds the counts of all replicas. `nnx.view` makes a second model with
# the same variables in evaluation mode: without dropout, and with the running batch statistics.
#
# `model.eval()` and `model.train()` also work, outside of compiled functions and before the *first* call of each step:
# a compiled function keeps the mode that the model had when it was traced.

# %%
with strategy.scope():
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))


def nnx_evaluation_of(model):
    """A function that returns the accuracy and the loss on the test set."""
    viewed = nnx.view(model, deterministic=True, use_running_average=True)

    def replica_step(x, y, mask):
        losses, logits = nnx_losses_of(viewed, x, y)
        metrics.update(logits=logits, labels=y, loss=losses, mask=mask)

    test_step = mr.function(lambda x, y, mask: strategy.run(replica_step, args=(x, y, mask)))

    def evaluate():
        metrics.reset()
        parts = [(test[0][i : i + 100], test[1][i : i + 100]) for i in range(0, len(test[0]), 100)]
        for (x, y), mask in strategy.experimental_distribute_dataset(parts, mr.data.InputOptions(last_batch="pad")):
            test_step(x, y, mask)
        return {name: float(value) for name, value in metrics.compute().items()}

    return evaluate


evaluate = nnx_evaluation_of(classifier)
print({name: round(value, 3) for name, value in evaluate().items()})

# %% [markdown]
# The same on one device, with an ordinary model of arrays. Such a model is also the better one to evaluate if the
# `nnx.BatchNorm` of the model have no `axis_name`: its batch statistics are the means over the replicas, while in `run`
# each replica reads its own. It is a copy, so make it again after more training.

# %%
plain = nnx.view(mr.unmirror(classifier), deterministic=True, use_running_average=True)
losses, logits = nnx_losses_of(plain, *test)
assert plain(test[0]).dtype == jnp.bfloat16
print(f"on one device: accuracy {(logits.argmax(1) == test[1]).mean():.3f}, loss {losses.mean():.3f}")
np.testing.assert_allclose(list(evaluate().values()), [(logits.argmax(1) == test[1]).mean(), losses.mean()], rtol=2e-2)

# %% [markdown]
# ## Early stopping
#
# `evaluate` returns the same number on all workers, because a read of `right` sums over all of them. So all workers
# stop at the same step.

# %%
params = new_params()
step, evaluate = plain_step(params, mr.optimizers.Adam(1e-2)), evaluation_of(params)
best, patience, kept = 0.0, 0, None
for epoch in range(40):
    for x, y in batches(10, seed=epoch):
        step(x, y)
    accuracy, _ = evaluate()
    if accuracy > best:
        best, patience, kept = accuracy, 0, jax.tree.map(np.asarray, mr.unmirror(params))
    else:
        patience += 1
    if patience == 2:
        break
mr.assign(params, kept)
print(f"stopped after epoch {epoch + 1}, accuracy {best:.3f}")

# %% [markdown]
# ## Clipping
#
# Pass the bound to the optimizer. It clips the *sum* of the gradients, so the result does not depend on the number of
# replicas. Do not clip in the replica function before the optimizer.

# %%
params = new_params()
step = plain_step(params, mr.optimizers.SGD(0.5, global_clipnorm=1.0))
print(f"loss {[round(float(step(x, y)), 3) for x, y in batches(20)][-1]}")

# %% [markdown]
# ## Freezing a part of the model
#
# Compute gradients for a part of the tree only. The other variables are not changed, and get no optimizer slots.

# %%
params = new_params()
optimizer = mr.optimizers.Adam(1e-2)
before = params["hidden"].numpy()


def head_step(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(losses_of(params, x, y))
    optimizer.apply_gradients([(tape.gradient(loss, params["out"]), params["out"])])
    return loss


step = step_of(head_step)
frozen = [float(step(x, y)) for x, y in batches(20)]
np.testing.assert_array_equal(params["hidden"].numpy(), before)
print(f"loss {frozen[0]:.3f} -> {frozen[-1]:.3f}; slots of the layer: {list(optimizer.slots(params['out']))}")

# %% [markdown]
# ## Several optimizers
#
# Call each optimizer with its own part:

# %%
params = new_params()
slow, fast = mr.optimizers.SGD(0.1), mr.optimizers.Adam(1e-2)


def two_step(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(losses_of(params, x, y))
    gradients = tape.gradient(loss, params)
    slow.apply_gradients([(gradients["hidden"], params["hidden"])])
    fast.apply_gradients([(gradients["out"], params["out"])])
    return loss


step = step_of(two_step)
print(f"loss {[round(float(step(x, y)), 3) for x, y in batches(20)][-1]}")

# %% [markdown]
# ## Accumulating gradients
#
# `GradientAccumulator` adds the gradients of several micro-batches per replica, and reduces over the replicas once. The
# result is the gradient of the mean over all examples. Four micro-batches of 24 equal one batch of 96:

# %%
params = new_params()
optimizer = mr.optimizers.SGD(0.5)
with strategy.scope():
    accumulator = mr.GradientAccumulator(list(params.values()))


@mr.function
def accumulate(x, y):
    def replica_step(x, y):
        with mr.GradientTape() as tape:
            loss = losses_of(params, x, y).mean()  # Over the micro-batch of this replica.
        accumulator.add(tape.gradient(loss, list(params.values())), count=len(x))

    strategy.run(replica_step, args=(x, y))


@mr.function
def update():
    strategy.run(lambda: accumulator.apply(optimizer))


x, y = training[0][:96], training[1][:96]
micro = [(x[i : i + 24], y[i : i + 24]) for i in range(0, 96, 24)]
for part in strategy.experimental_distribute_dataset(micro):
    accumulate(*part)
update()
other = new_params()
whole = plain_step(other, mr.optimizers.SGD(0.5))
for batch in strategy.experimental_distribute_dataset([(x, y)]):
    whole(*batch)
np.testing.assert_allclose(params["out"].numpy(), other["out"].numpy(), atol=1e-6)
print("the weights of 4 micro-batches and of one batch are equal")

# %% [markdown]
# ## Checkpoint surgery
#
# `CheckpointReader` reads values by name, without the program that saved them. Here a trained hidden layer starts a
# model with another output layer:

# %%
path = mr.checkpoint.Checkpoint(params=params, optimizer=optimizer).save(folder / "trained")
reader = mr.checkpoint.CheckpointReader(path)
for name, shape in reader.shapes.items():
    print(name, shape)
with strategy.scope():
    wider = mr.mirror({"hidden": jnp.zeros((64, 32)), "out": jnp.zeros((32, 20))})
wider["hidden"].assign(reader.read("params/hidden"))

# %% [markdown]
# `Checkpoint.restore` returns a status that names what did not match:

# %%
status = mr.checkpoint.Checkpoint(params={"hidden": wider["hidden"]}).restore(path)
print("restored:", status.matched)
print("in the checkpoint only:", status.unexpected)
status.expect_partial()

# %% [markdown]
# ## Profiling
#
# `jax.profiler.trace` records device and host activity. `block_until_ready` keeps steps that are still running inside
# the trace. Time several steps together: one step returns before the devices have finished it.

# %%
params = new_params()
step = plain_step(params, mr.optimizers.Adam(1e-2))
data = list(batches(22))
step(*data[0])  # Compiles.
with jax.profiler.trace(folder / "profile"):
    jax.block_until_ready(step(*data[1]))
start = time.perf_counter()
for batch in data[2:]:
    loss = step(*batch)
jax.block_until_ready(loss)
print(f"{(time.perf_counter() - start) / 20 * 1e3:.2f} ms per step")
print([path.suffixes[-1] for path in sorted((folder / "profile").rglob("*")) if path.is_file()])

# %% [markdown]
# `mirrored plan train.py --replicas 8,64` predicts the step on more replicas and names its bottleneck.
#
# ## TensorBoard
#
# `mirrored.tf` has `tf.summary` (extra `summary`). Convert values that several workers must read together before the
# first worker alone writes them:

# %%
import mirrored.tf as tf

writer = tf.summary.create_file_writer(str(folder / "logs"))
with writer.as_default():
    for number, (x, y) in enumerate(batches(5)):
        tf.summary.scalar("loss", float(step(x, y)), step=number)
writer.flush()
print(len(list((folder / "logs").iterdir())), "event file")

# %% [markdown]
# ## A progress bar
#
# `mr.progress` shows the step and values beside it, and does not wait for the devices:

# %%
bar = mr.progress(list(batches(20)), description="epoch 1")
for x, y in bar:
    bar.show(loss=step(x, y))
