"""The only door to JAX's unstable names: `jax.core`, `jax.extend`, `jax.interpreters`, `jax._src`.

One shim per topic; each says which JAX versions it serves and has a probe test in `tests/_jax/`.
"""
