"""Finds the operations of a traced program that place arrays on several devices, such as `shard_map`.

Supports JAX 0.10 to 0.12: the names of primitives and of their parameters. `jax.pmap` is a `shard_map` inside a `jit`
(before that: a primitive of its own, `xla_pmap`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from jax.sharding import AxisType

from mirrored._jax.source_lines import source_line

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn


@dataclasses.dataclass(frozen=True)
class Placement:
    """An operation that places arrays on devices.

    Attributes:
        what: The function of JAX, and the mesh or sharding: ``jax.shard_map or jax.pmap over Mesh('i': 2)``.
        line: The user's source line, such as ``file.py:12``; None if unknown.
    """

    what: str
    line: str | None


def placements_in(equations: Iterable[Sequence[JaxprEqn]]) -> Iterator[Placement]:
    """Yields the operations of a program that place arrays on several devices.

    An operation without a source line has that of the call around it.

    Args:
        equations: The equations of the program, each followed by those around it, innermost first (`equations_in`).
    """
    for eqn, *outer in equations:
        what = _placed_by(eqn)
        if what is not None:
            yield Placement(what, next(filter(None, map(source_line, (eqn, *outer))), None))


def _placed_by(eqn: JaxprEqn) -> str | None:
    describe = _DESCRIBED.get(eqn.primitive.name)
    return None if describe is None else describe(eqn.params)


def _jit(params: dict[str, Any]) -> str | None:
    for name in ("in_shardings", "out_shardings"):
        for sharding in params.get(name, ()):
            if hasattr(sharding, "device_set"):
                return f"jax.jit({name}={sharding})"
    return None


def _device_put(params: dict[str, Any]) -> str | None:
    # To one device, it has no effect inside a program.
    several = (one for one in params.get("devices", ()) if len(getattr(one, "device_set", ())) > 1)
    sharding = next(several, None)
    return None if sharding is None else f"jax.device_put to {sharding}"


def _reshard(params: dict[str, Any]) -> str | None:
    # JAX itself adds one to an index of an array of a mesh with automatic axes, where it has no effect.
    sharding = params.get("dst_sharding")
    axis_types = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    return f"jax.sharding.reshard to {sharding}" if AxisType.Explicit in axis_types else None


_DESCRIBED: Final = {
    "shard_map": lambda params: f"jax.shard_map or jax.pmap over {params.get('mesh', 'a mesh')}",
    "xla_pmap": lambda params: f"jax.pmap over {params.get('global_axis_size', 'several')} devices",
    "sharding_constraint": lambda params: f"jax.lax.with_sharding_constraint of {params.get('sharding')}",
    "reshard": _reshard,
    "mesh_cast": _reshard,
    "jit": _jit,
    "pjit": _jit,
    "device_put": _device_put,
}
