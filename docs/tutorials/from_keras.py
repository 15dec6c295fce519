# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From Keras: fit and custom loops
#
# This tutorial trains a Keras 3 model with `fit` on one device, with `fit` on 4 replicas, and with a custom loop on 4
# replicas. The three runs have the same losses.

# %%
import mirrored as mr  # Before `import keras`: selects Keras' JAX backend.

mr.config.set_virtual_devices(4)  # Before JAX's first operation. Omit this line to use your GPUs.

import warnings

import jax
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.images / 16).astype(np.float32)
labels = digits.target.astype(np.int32)
BATCH = 128


def new_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


class Losses(keras.callbacks.Callback):
    """The mean loss after each step."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


def fit(model):
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    losses = Losses()
    model.fit(images, labels, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=[losses])
    return losses.values


# %% [markdown]
# ## fit on one device

# %%
expected = fit(new_model())
print(f"{len(expected)} steps, loss {expected[0]:.4f} -> {expected[-1]:.4f}")

# %% [markdown]
# ## fit on four replicas
#
# ```diff
# -model = new_model()
# +strategy = mr.MirroredStrategy()
# +with strategy.scope():
# +    model = new_model()
# ```
#
# `compile` and `fit` do not change. `fit` divides each batch over the replicas, also the last one, which has only 5
# examples for 4 replicas.

# %%
strategy = mr.MirroredStrategy()
with strategy.scope():
    model = new_model()
replicated = fit(model)
print(f"{len(replicated)} steps, loss {replicated[0]:.4f} -> {replicated[-1]:.4f}")
np.testing.assert_allclose(replicated, expected, rtol=1e-4)
loss, accuracy = model.evaluate(images, labels, batch_size=BATCH, verbose=0)
print(f"evaluate: loss {loss:.4f}, accuracy {accuracy:.3f}")

# %% [markdown]
# ## A custom loop
#
# The loss object has `reduction=None`: it returns one loss per example. `average_loss` divides by the size of the
# global batch. The optimizer sums the gradients over the replicas.

# %%
with strategy.scope():
    model = new_model()
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


def replica_step(x, y):
    with mr.GradientTape() as tape:
        logits = model(x, training=True)
        loss = mr.losses.average_loss(loss_of(y, logits))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    accuracy.update_state(y, logits)
    return loss


@mr.function
def train_step(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)


batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(images) - BATCH, BATCH)]
custom = [float(train_step(x, y)) for x, y in strategy.experimental_distribute_dataset(batches)]
print(f"{len(custom)} steps, loss {custom[0]:.4f} -> {custom[-1]:.4f}, accuracy {float(accuracy.result()):.3f}")

# %% [markdown]
# The loop has 14 steps, without the last, smaller batch. `fit` reports the mean of the losses so far, and the custom
# loop returns the loss of each step. Their running means are equal:

# %%
running = np.cumsum(custom) / np.arange(1, len(custom) + 1)
np.testing.assert_allclose(running, expected[: len(running)], rtol=1e-4)

figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(expected, label="fit, one device", linewidth=5, alpha=0.3)
axes.plot(replicated, label="fit, 4 replicas", linewidth=2)
axes.plot(running, "--", label="custom loop, 4 replicas", linewidth=1, color="black")
axes.set(xlabel="step", ylabel="mean loss so far")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## A common mistake
#
# Keras' losses average over the examples that they get. In a replica these are the examples of one replica. The sum of
# four such means is 4 times too large, and so is the step. The library warns when the loss object is called:

# %%
averaging = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # No `reduction=None`.


def wrong_step(x, y):
    with mr.GradientTape() as tape:
        loss = averaging(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


batch = next(iter(strategy.experimental_distribute_dataset(batches[:1])))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    strategy.run(mr.function(wrong_step), args=batch)
for warning in caught:
    print(f"{warning.category.__name__}: {warning.message}")
assert any(warning.category.__name__ == "LossReductionWarning" for warning in caught)

# %% [markdown]
# ## Saving, and going on without the strategy
#
# `model.save` and `load_model` work inside and outside a scope. A model that was saved on 4 replicas is an ordinary
# Keras model when it is loaded outside a scope:

# %%
import pathlib
import tempfile

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
difference = np.abs(np.asarray(loaded(images[:100])) - np.asarray(model(images[:100]))).max()
print(f"largest difference of the logits: {difference:.1e}")
print(len(jax.devices()), "devices; the loaded model is on", loaded.weights[0].value.devices())

# %% [markdown]
# ## What a custom loop has to do itself
#
# `fit` does three things that a custom loop has to do, and no message says so if it does not:
#
# - Batch normalization: `fit` uses the statistics of the whole batch. In a loop, write
#   `keras.layers.BatchNormalization(synchronized=True)`; the plain layer uses those of the replica's part.
# - Regularizers: add `mr.losses.scale_regularization_loss(sum(model.losses))`, as each replica adds its own.
# - Weights of examples: `mr.losses.average_loss(loss_of(y, model(x), sample_weight=w))` divides by the number of
#   examples, as `fit` does.
#
# To resume a custom loop, put the model, the optimizer and the iterator of the data into one
# `mr.checkpoint.Checkpoint`, see [the troubleshooting page](../troubleshooting.md).
#
# ## Next
#
# - [The rules for Keras](../frameworks.md)
# - [Programs written for TensorFlow](from_tensorflow.py)
