"""`tf.saved_model`: saves a program and its variables, and loads them without the original code."""
