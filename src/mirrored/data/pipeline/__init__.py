"""`Dataset`: the subset of `tf.data` that training loops use, built on Grain."""
