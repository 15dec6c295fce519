"""`tf.saved_model`: exports compiled functions and variables to files, and loads them without the original code."""
