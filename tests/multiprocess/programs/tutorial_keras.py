"""`fit` on several workers, in the manner of TensorFlow's tutorial multi_worker_with_keras.

mirrored run --workers 2 tutorial_keras.py FOLDER
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import mirrored.tf as tf

folder, per_worker_batch = sys.argv[1], 16
strategy = tf.distribute.MultiWorkerMirroredStrategy()
num_workers = strategy.cluster_resolver.cluster_spec().num_tasks("worker")
task_id = strategy.cluster_resolver.task_id

random = np.random.default_rng(0)
labels = random.integers(0, 4, 512)
images = random.normal(size=(512, 12, 12, 1)).astype("float32")
images[np.arange(512), 3 * labels, 3 * labels] += 8.0
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512, seed=1).repeat()
dataset = dataset.batch(per_worker_batch * num_workers)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = dataset.with_options(options)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((12, 12, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )

history = model.fit(dataset, epochs=2, steps_per_epoch=8, verbose=2 if task_id == 0 else 0)
print("losses", [round(float(loss), 6) for loss in history.history["loss"]])
print("accuracy", round(float(history.history["accuracy"][-1]), 6))

# The chief's file is kept; the others write where they do not disturb.
path = os.path.join(folder, "model.keras" if task_id == 0 else f"workertemp_{task_id}.keras")
model.save(path)
again = keras.models.load_model(path)
print("restored", all(np.array_equal(a, b) for a, b in zip(again.get_weights(), model.get_weights(), strict=True)))
