"""Runs TensorFlow's notebooks on `mirrored.tf`, cell by cell."""
