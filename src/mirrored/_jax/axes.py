"""Defines the name of the mesh axis over the replicas' devices, and explains JAX's errors about unbound axis names."""

from __future__ import annotations

import re
from typing import Final

from mirrored._jax.private import config as _config

REPLICA_AXIS: Final = "mirrored_replica"
"""The mesh axis of the devices. User code must not reduce over it: a device may have several replicas."""

# Supports JAX 0.10 to 0.12. Outside of a trace, some collectives have no evaluation rule.
_UNBOUND = re.compile(r"unbound axis name: ([^\s.]+)")
_NO_RULE = re.compile(r"Evaluation rule for '(ppermute|all_to_all|psum_scatter|reduce_scatter|pshuffle|pbroadcast)'")


def evaluates_constants() -> bool:
    """Returns whether the caller is in a block of `jax.ensure_compile_time_eval`.

    In such a block JAX evaluates every operation without traced operands immediately. That includes `axis_index` in a
    program over a mesh, outside of which its axis is not bound.
    """
    return bool(_config.eager_constant_folding.value)


def unbound_axis(error: BaseException) -> str | None:
    """Returns a description of the cause of JAX's error about an unbound axis name; None for other errors.

    Example:
        >>> import jax
        >>> try:
        ...     jax.lax.axis_index("replica")
        ... except NameError as error:
        ...     print(unbound_axis(error))
        the axis name 'replica', which is not bound
    """
    if isinstance(error, NameError) and (found := _UNBOUND.search(str(error))):
        return f"the axis name {found[1]!r}, which is not bound"
    if isinstance(error, NotImplementedError) and (found := _NO_RULE.search(str(error))):
        return f"{found[1]} over an axis name outside of a mesh"
    return None
