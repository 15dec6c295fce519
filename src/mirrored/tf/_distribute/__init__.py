"""`tf.distribute`: the strategies under the names of TensorFlow 2 and 1."""
