"""`tf.data`: datasets of tensors, host values in pipelines, and the parsing of data files."""
