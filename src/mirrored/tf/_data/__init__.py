"""`tf.data`: datasets of tensors, arrays and strings that stay in host memory, and parsers for data files."""
