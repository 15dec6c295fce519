"""Randomized soak test: draws complete training programs and compares them with single-device JAX."""
