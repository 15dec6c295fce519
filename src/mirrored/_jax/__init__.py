"""Wrappers of JAX's unstable APIs: the only package that uses `jax.core`, `jax.extend`, `jax.interpreters`, `jax._src`.

A module has one section per topic, which states the JAX versions that it supports and what it relies on. `private`
imports `jax._src` for all of them. `tests/_jax/` has probe tests of each topic, in ``test_<module>.py`` or, for a topic
with a file of its own, ``test_<module>_<topic>.py``.
"""
