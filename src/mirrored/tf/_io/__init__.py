"""`tf.io`, `tf.summary`, `tf.print` and `tf.profiler`: files, logging and profiling."""
