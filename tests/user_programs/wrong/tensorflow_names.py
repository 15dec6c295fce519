"""Names below `tf` that do not exist."""

import mirrored.tf.maths  # error  # noqa: F401

import mirrored.tf as tf
from mirrored.tf import reduce_summ  # error  # noqa: F401
from mirrored.tf.nn import relu7  # error  # noqa: F401

x = tf.constant([1.0])
v = tf.Variable(1.0)
print(tf.reduce_summ(x))  # error
print(tf.math.reduce_summ(x))  # error
print(tf.nonsense)  # error
print(tf.nonsense.thing)  # error
print(tf.distribute.MiroredStrategy())  # error
print(tf.distribute.TPUStrategy)  # error
print(tf.distribute.ReduceOp.SUMM)  # error
print(tf.distribute.experimental.CommunicationOption())  # error
print(tf.distribute.get_strategy().runn(print))  # error
print(tf.compat.v1.Session)  # error
print(tf.compat.v2)  # error
print(tf.placeholder)  # error
print(tf.float31)  # error
print(tf.dtypes.as_dtyp("float32"))  # error
print(tf.nn.relu7(x))  # error
print(tf.nn.conv2dd(x))  # error
print(tf.linalg.matmull(x, x))  # error
print(tf.random.norml([2]))  # error
print(tf.random.Generator.from_sed(1))  # error
print(tf.data.Datset)  # error
print(tf.data.Dataset.range(3).bach(2))  # error
print(tf.data.experimental.cardinal)  # error
print(tf.io.gfile.exist("x"))  # error
print(tf.io.VarLenFeature)  # error
print(tf.train.Exampel())  # error
print(tf.train.Example().SerializeToStrin())  # error
print(tf.errors.InvalidArgument)  # error
print(tf.config.list_devices())  # error
print(tf.initializers.Zero())  # error
print(tf.image.resizes(x, (2, 2)))  # error
print(tf.signal.sftf(x))  # error
print(tf.experimental.numpy.arrange(3))  # error
print(tf.experimental.numpy.random.radn(3))  # error
print(tf.ragged)  # error
print(tf.Array)  # error
print(tf.Callable)  # error
print(tf.GradientTape().gradients(x, v))  # error
print(tf.constant(1.0).nump())  # error
print((x + 1).nump())  # error
print(v.asign(2.0))  # error
print(tf.TensorArray(tf.float32, 1).stak())  # error
