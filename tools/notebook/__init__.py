"""Runs TensorFlow's notebooks on `mirrored.tf`, cell after cell."""
