"""Wrappers of JAX's unstable APIs: the only package that uses `jax.core`, `jax.extend`, `jax.interpreters`, `jax._src`.

A module has one section per topic, which states the JAX versions that it supports. `tests/_jax/` has a file of probe
tests for most topics.
"""
