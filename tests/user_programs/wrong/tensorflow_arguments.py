"""Arguments of functions and classes below `tf` that do not exist, or are missing."""

import mirrored.tf as tf

x = tf.constant([[1.0, 2.0]])
v = tf.Variable(1.0)
print(tf.Variable(1.0, trainabel=True))  # error
print(tf.GradientTape(persistant=True))  # error
print(tf.constant(1.0, type=tf.float32))  # error
print(tf.reduce_sum(x, axes=0))  # error
print(tf.reduce_sum(x, keep_dims=True))  # error
print(tf.math.reduce_mean(x, 0, True, 3, 4))  # error
print(tf.reduce_sum())  # error
print(tf.add(x))  # error
print(tf.math.argmax(x, dimension=0))  # error
print(tf.concat([x, x]))  # error
print(tf.concat([x, x], concat_dim=0))  # error
print(tf.matmul(x, x, transpose=True))  # error
print(tf.cast(x))  # error
print(tf.one_hot([1], 3, off=1.0))  # error
print(tf.nn.softmax(x, dim=0))  # error
print(tf.nn.dropout(x, keep_prob=0.5))  # error
print(tf.nn.conv2d(x, x, stride=1))  # error
print(tf.random.normal([2], std=3.0))  # error
print(tf.zeros([2], type=tf.int32))  # error
print(tf.while_loop(lambda i: i < 3, lambda i: (i + 1,)))  # error
print(tf.distribute.MirroredStrategy(device=["CPU:0"]))  # error
print(tf.distribute.get_strategy().reduce("SUM", x))  # error
print(tf.data.Dataset.range(3).shuffle(2, sead=True))  # error
print(tf.TensorSpec([2], type=tf.int32))  # error
print(tf.TensorArray(tf.float32, sizes=2))  # error
print(tf.train.Checkpoint(1, 2, 3))  # error
print(tf.train.Example(feature=None))  # error
print(tf.random.Generator.from_seed(1).normal([2], std=3.0))  # error
print(tf.initializers.GlorotUniform(sead=1))  # error
print(tf.initializers.Zeros()([2], dtyp=tf.int32))  # error
print(tf.zeros([2.5]))  # error
print(tf.expand_dims(x, "0"))  # error
print(tf.ones([2], dtype=3))  # error
print(tf.io.FixedLenFeature([]))  # error
print(tf.image.resize(x, (2, 2), methods="nearest"))  # error
print(tf.nn.compute_average_loss(x, batch_size=3))  # error
print(tf.config.set_visible_devices())  # error
print(tf.clip_by_value(x, 0.0))  # error
print(tf.GradientTape().gradient(x))  # error
print(v.assign())  # error
