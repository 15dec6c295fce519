"""`tf.io`, `tf.summary`, `tf.print` and `tf.profiler`."""
