"""`tf.distribute`: the strategies of `mirrored` under TensorFlow's names."""
