# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From TensorFlow
#
# This tutorial runs a training program that was written for TensorFlow. Only its imports change. The program is a
# custom training loop with `MirroredStrategy`, `tf.GradientTape` and `tf.function`, after TensorFlow's tutorial "Custom
# training with tf.distribute.Strategy".
#
# ```diff
# -import tensorflow as tf
# +import mirrored.tf as tf
# ```

# %%
import matplotlib.pyplot as plt
import numpy as np

import mirrored.tf as tf

# Four logical devices. With GPUs, omit this call.
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
DEVICES = [f"CPU:{i}" for i in range(4)]

# %% [markdown]
# ## The program
#
# Everything in this cell runs unchanged on TensorFlow 2.21. The start values come from NumPy, so that both libraries
# start from the same weights.


# %%
def train(devices, steps=40):
    random = np.random.default_rng(0)
    x = random.normal(size=(steps * 64, 16)).astype(np.float32)
    y = np.argmax(x[:, :4] + 0.3 * random.normal(size=(len(x), 4)), axis=1).astype(np.int32)
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
    dataset = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        hidden = tf.Variable(random.normal(size=(16, 32)).astype(np.float32) / 4)
        bias = tf.Variable(tf.zeros([32]))
        out = tf.Variable(random.normal(size=(32, 4)).astype(np.float32) / 6)
        weights = [hidden, bias, out]

    def step_fn(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            logits = tf.matmul(tf.nn.relu(tf.matmul(features, hidden) + bias), out)
            per_example = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=64)
        gradients = tape.gradient(loss, weights)
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.5 * gradient)
        return loss

    @tf.function
    def train_step(inputs):
        per_replica = strategy.run(step_fn, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    return [float(train_step(batch)) for batch in dataset]


losses = train(DEVICES)
print(f"{len(losses)} steps, loss {losses[0]:.6f} -> {losses[-1]:.6f}")

# %% [markdown]
# ## The losses of TensorFlow
#
# The same cell, run on TensorFlow 2.21.0 with 4 logical CPU devices, returned these losses (every fifth step):

# %%
RECORDED = {
    **{0: 1.498115, 5: 0.972390, 10: 0.849156, 15: 0.767898},
    **{20: 0.785603, 25: 0.645857, 30: 0.486775, 35: 0.495409},
}
for step, loss in RECORDED.items():
    print(f"step {step:2d}: TensorFlow {loss:.6f}, mirrored {losses[step]:.6f}")
np.testing.assert_allclose([losses[step] for step in RECORDED], list(RECORDED.values()), rtol=1e-5)

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(losses, label="mirrored.tf, 4 replicas", linewidth=1)
axes.plot(RECORDED.keys(), RECORDED.values(), "o", label="TensorFlow 2.21, recorded", fillstyle="none")
axes.set(xlabel="step", ylabel="loss")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## Eager and compiled
#
# `tf.config.run_functions_eagerly(True)` runs the step as plain Python, so that `print` and `pdb` see values:

# %%
tf.config.run_functions_eagerly(True)
eager = train(DEVICES, steps=3)
tf.config.run_functions_eagerly(False)
print("eager, first steps:   ", [f"{loss:.6f}" for loss in eager])
print("compiled, first steps:", [f"{loss:.6f}" for loss in train(DEVICES, steps=3)])

# %% [markdown]
# ## A name that does not exist here
#
# Names of TensorFlow that are out of scope raise an error that says what to use instead:

# %%
for name in ("compat.v1.Session", "distribute.TPUStrategy"):
    try:
        found = tf
        for part in name.split("."):
            found = getattr(found, part)
        found()
    except Exception as error:
        print(f"tf.{name}: {type(error).__name__}")
        print(f"  {error}")
    else:
        raise AssertionError(name)

# %% [markdown]
# ## Next
#
# - [Every deliberate difference from TensorFlow](../coming_from_tensorflow.md)
# - [Results of TensorFlow's own tests](../tf_conformance.md)
# - [From Keras: fit and custom loops](from_keras.py)
