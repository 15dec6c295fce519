"""A TensorFlow program with a custom training loop."""

from __future__ import annotations

from typing import Any

import numpy as np

import mirrored.tf as tf

GLOBAL_BATCH = 8


class Model(tf.Module):
    """Two dense layers."""

    def __init__(self, units: int, name: str | None = None) -> None:
        super().__init__(name=name)
        make = tf.initializers.GlorotUniform(seed=0)
        self.w = tf.Variable(make(shape=(4, units)), name="w")
        self.b = tf.Variable(tf.zeros([units]), name="b")
        self.steps = tf.Variable(0, trainable=False, dtype=tf.int32)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(tf.nn.relu(tf.matmul(x, self.w) + self.b), axis=-1)


strategy = tf.distribute.MirroredStrategy(["CPU:0"], num_replicas=2)
features = tf.random.stateless_normal([16, 4], seed=[1, 2])
labels = tf.one_hot(tf.argmax(features, axis=1), depth=4)
data = (
    tf.data.Dataset.from_tensor_slices((features.numpy(), labels.numpy()))
    .batch(GLOBAL_BATCH)
    .prefetch(tf.data.AUTOTUNE)
)
with strategy.scope():
    model = Model(4, name="model")


def step(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    with tf.GradientTape() as tape:
        losses = -tf.reduce_sum(y * tf.math.log(model(x) + 1e-6), axis=1)
        loss: tf.Tensor = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(loss, [model.w, model.b])
    context = tf.distribute.get_replica_context()
    for variable, gradient in zip([model.w, model.b], context.all_reduce("SUM", gradients), strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


@tf.function(jit_compile=True)
def train_step(batch: Any) -> Any:
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)


for batch in strategy.experimental_distribute_dataset(data):
    print(train_step(batch).numpy())


def total(variables: tuple[tf.Variable, ...]) -> float:
    return sum(float(tf.reduce_sum(one)) for one in variables)


print(total(model.trainable_variables), model.w.value().numpy(), (model.w * 2).numpy(), np.asarray(model.b))
