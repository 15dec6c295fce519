"""Names of every kind below `tf`."""

from __future__ import annotations

import numpy as np

import mirrored.tf as tf
import mirrored.tf.compat.v1 as tf1
import mirrored.tf.math
from mirrored.tf import nn
from mirrored.tf.keras import layers


def norm(x: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.cast(tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True, name="norm")), dtype)


x = tf.constant([[1.0, 2.0], [3.0, 4.0]], dtype=tf.float32, name="x")
print(norm(x).numpy(), (x[0] + 1).numpy(), (2 * x / x).get_shape().as_list(), (x @ x)[..., tf.newaxis].shape)
print(
    tf.math.reduce_std(x).numpy(),
    mirrored.tf.math.special.expint(x),
    nn.relu(x),
    tf.linalg.matmul(x, x, transpose_b=True),
)
print(tf.shape(x)[0], tf.rank(x), tf.size(x), tf.TensorShape([None, 2]).rank, tf.TensorSpec([2], tf.int32, name="s"))
print(
    tf.math.top_k(x, k=1).values.numpy(),
    tf.unique(tf.constant([1, 1, 2])).y.numpy(),
    tf.bool,
    tf.dtypes.as_dtype("int8"),
)
print(tf.range(3), tf.concat([x, x], axis=0), tf.stack([x, x]), tf.split(x, 2, axis=1), tf.where(x > 2, x, 0.0))
print(tf.cond(tf.reduce_any(x > 1), lambda: x, lambda: -x), tf.bitwise.bitwise_and(1, 3), tf.newaxis, tf.__version__)
print(tf.while_loop(lambda i: i < 3, lambda i: (i + 1,), [tf.constant(0)], maximum_iterations=5))
print(tf.compat.v1.logging.INFO, tf1.distribute.get_strategy(), tf.experimental.numpy.arange(3), tf.version.VERSION)

rows = tf.TensorArray(tf.float32, size=2).write(0, 1.0).write(1, 2.0)
print(rows.stack().numpy(), tf.io.gfile.exists("no"), tf.errors.InvalidArgumentError, tf.errors.INVALID_ARGUMENT)
generator = tf.random.Generator.from_seed(1)
print(
    generator.normal([2]).numpy(), generator.split(2)[0].uniform([2], maxval=3).numpy(), tf.random.normal([2], seed=1)
)

v = tf.Variable([1.0, 2.0], trainable=True, name="v", aggregation=tf.VariableAggregation.MEAN)
v.assign_add([1.0, 1.0])
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = tf.reduce_sum(x * v)
print(tape.gradient(y, {"x": x, "v": v}, unconnected_gradients=tf.UnconnectedGradients.ZERO))
print(v.read_value().numpy(), tf.square(v), v.dtype, v.shape, layers.Dense(2))

example = tf.train.Example(
    features=tf.train.Features(feature={"n": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))})
)
parsed = tf.io.parse_single_example(example.SerializeToString(), {"n": tf.io.FixedLenFeature([], tf.int64)})
dataset = tf.data.Dataset.range(4).map(lambda n: n + 1, num_parallel_calls=tf.data.AUTOTUNE).batch(2)
print(parsed, list(dataset.as_numpy_iterator()), tf.data.experimental.cardinality(dataset))
with tf.device("CPU:0"), tf.name_scope("part"), tf.init_scope():
    print(tf.config.list_physical_devices("CPU"), tf.nest.flatten({"a": [1, 2]}), tf.initializers.Zeros()([2]))
print(tf.image.resize(np.ones((1, 2, 2, 1), np.float32), (4, 4), method=tf.image.ResizeMethod.BILINEAR).shape)
print(tf.keras.optimizers.SGD(0.1), tf.losses.MeanSquaredError(), tf.convert_to_tensor(np.ones(2)).numpy())
