"""`tf.data`: datasets whose elements are tensors, strings kept in host memory, and the parsing of data files."""
