"""`tf.data`: datasets of tensors, strings and arrays that stay on the host, and the parsing of data files."""
