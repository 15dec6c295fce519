"""Wrappers of JAX's unstable APIs: the only package that uses `jax.core`, `jax.extend`, `jax.interpreters`, `jax._src`.

There is one module per topic. Each states the JAX versions that it supports and has a probe test in `tests/_jax/`.
"""
