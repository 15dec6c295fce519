"""JAX's persistent compilation cache, written by every process.

Serves JAX 0.10 to 0.12. JAX lets only process 0 write, and on CPU the key holds the topology as one process sees it, so
that processes > 0 never hit: 3.1 s of every start of a small model. Here each writes its own entries.
"""

from __future__ import annotations

from typing import Any

from jax._src import compiler as _compiler
from jax._src import distributed as _distributed


class _AsFirst:
    """Stands for the distributed state in JAX's check of who writes; everything else is the real one's."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(_distributed.global_state, name)


class _Module:
    global_state = _AsFirst()

    def __getattr__(self, name: str) -> Any:
        return getattr(_distributed, name)


def write_on_every_process() -> bool:
    """Has every process of a cluster write what it compiles into the cache.

    Returns:
        Whether this JAX has the check that is taken out.
    """
    write: Any = getattr(_compiler, "_cache_write", None)
    if write is None or "distributed" not in write.__code__.co_names:
        return False
    if write.__globals__ is vars(_compiler):
        globals_ = dict(vars(_compiler))
        globals_["distributed"] = _Module()
        patched = type(write)(write.__code__, globals_, write.__name__, write.__defaults__, write.__closure__)
        patched.__kwdefaults__ = write.__kwdefaults__
        vars(_compiler)["_cache_write"] = patched
    return True
