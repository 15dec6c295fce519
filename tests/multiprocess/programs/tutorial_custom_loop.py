"""A custom training loop on several workers, in the manner of TensorFlow's tutorial multi_worker_with_ctl.

mirrored run --workers 2 tutorial_custom_loop.py FOLDER EPOCHS
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import mirrored.tf as tf

GLOBAL_BATCH, STEPS_PER_EPOCH = 32, 6
folder, num_epochs = sys.argv[1], int(sys.argv[2])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task_type = strategy.cluster_resolver.task_type
task_id = strategy.cluster_resolver.task_id
cluster_spec = strategy.cluster_resolver.cluster_spec()


def images_of(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Each worker reads its part of the images, in batches for one replica."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 512)
    images = random.normal(size=(512, 12, 12, 1)).astype("float32")
    images[np.arange(512), 3 * labels, 3 * labels] += 8.0
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(
        context.num_input_pipelines, context.input_pipeline_id
    )
    per_replica = context.get_per_replica_batch_size(GLOBAL_BATCH)
    return dataset.shuffle(256, seed=1).repeat().batch(per_replica)


dataset = strategy.distribute_datasets_from_function(images_of)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((12, 12, 1)),
            keras.layers.Conv2D(8, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    optimizer = keras.optimizers.RMSprop(0.005)
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(iterator):
    def replica_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = tf.nn.compute_average_loss(cross_entropy(y, predictions), global_batch_size=GLOBAL_BATCH)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    losses = strategy.run(replica_step, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


def is_chief() -> bool:
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


def writing_folder(path: str) -> str:
    """All workers must save; only what the chief writes is kept."""
    return path if is_chief() else os.path.join(path, f"workertemp_{task_id}")


epoch = tf.Variable(0, dtype=tf.int64, name="epoch")
step_in_epoch = tf.Variable(0, dtype=tf.int64, name="step_in_epoch")
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
mine = writing_folder(os.path.join(folder, "ckpt"))
manager = tf.train.CheckpointManager(checkpoint, directory=mine, max_to_keep=1)
latest = tf.train.latest_checkpoint(os.path.join(folder, "ckpt"))
if latest:
    checkpoint.restore(latest)
    print("restored", int(epoch.numpy()))

while epoch.numpy() < num_epochs:
    iterator = iter(dataset)
    total, batches = 0.0, 0
    while step_in_epoch.numpy() < STEPS_PER_EPOCH:
        total += float(train_step(iterator))
        batches += 1
        step_in_epoch.assign_add(1)
    print(f"Epoch: {int(epoch.numpy())}, accuracy: {float(accuracy.result()):.6f}, train_loss: {total / batches:.6f}.")
    accuracy.reset_state()
    epoch.assign_add(1)
    step_in_epoch.assign(0)
    manager.save()
    if not is_chief():
        tf.io.gfile.rmtree(mine)
