"""Moves arrays between devices, finds operations in programs that place arrays, removes meshes from array types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType
from jaxlib import xla_client as _xla_client

from mirrored._jax.boxes import Array, Box, payload_of
from mirrored._jax.source_lines import source_line
from mirrored._jax.traces import Tracer

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn

# Arrays that JAX may move between devices.
#
# JAX raises an error for an operation on arrays that are committed to different devices. Operands that are not
# committed are copied: to the devices of committed operands, else to the default device.
#
# Supports JAX 0.10 to 0.12: `jaxlib.xla_client.batched_device_put`, whose fifth parameter says whether the result is
# committed. `jax.device_put` always commits an array to the device that is given.


def movable(array: object) -> Any:
    """Returns an uncommitted array that shares the buffer of `array`, so that JAX may move the array to another device.

    A value that is not an array on one device is returned unchanged. A box stays the same object, by which nested tapes
    know it; its payload is replaced.
    """
    if type(array) is Box:
        array.payload = movable(array.payload)
        return array
    if type(array) is not Array or not array.committed or len(array.sharding.device_set) > 1:
        return array
    devices = list(array.sharding.device_set)
    return _xla_client.batched_device_put(array.aval, array.sharding, [array], devices, False)


def put_on(value: jax.Array, device: jax.Device | jax.sharding.Sharding) -> Any:
    """Puts an array on devices, by an operation whose transpose moves the cotangent to where the array was.

    `jax.device_put` finds out where a tracer's array is, but for an array that a tape tracks: it would leave the
    cotangent on the new device, where JAX cannot add it to others.
    """
    known = payload_of(value.to_concrete_value() if isinstance(value, Tracer) else value)
    return jax.device_put(value, device, src=known.sharding if type(known) is Array else None)


def is_device_mismatch(error: Exception) -> bool:
    """Returns whether JAX raised an error because arrays are committed to different devices."""
    return "incompatible devices" in str(error) or type(error).__name__ == "DeviceAssignmentMismatchError"


def near_first(arrays: Sequence[Any]) -> list[Any] | None:
    """Moves all committed arrays to the devices of the first committed array, and returns all arrays.

    Returns None if an array is a tracer, or if no array is committed.
    """
    payloads = [payload_of(array) for array in arrays]
    if not all(type(payload) is Array for payload in payloads):
        return None
    home = next((payload.sharding for payload in payloads if payload.committed), None)
    if home is None:
        return None
    return [
        jax.device_put(array, home) if payload.committed and payload.sharding.device_set != home.device_set else array
        for array, payload in zip(arrays, payloads, strict=True)
    ]


# The operations of a traced program that place arrays on several devices: nested meshes, sharding constraints.
#
# Supports JAX 0.10 to 0.12: the names of primitives and of their parameters. `jax.pmap` is a `shard_map` inside a `jit`
# (before that: a primitive of its own, `xla_pmap`).


@dataclasses.dataclass(frozen=True)
class Placement:
    """An operation in a program that places arrays on several devices, such as `jax.shard_map`.

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


# The identity on an array, without the mesh in its type.
#
# The type of a result of `shard_map` names its mesh, and JAX refuses operations on arrays of different meshes. The body
# of another run is traced for one device, without a mesh. If the body closes over such a result, its derivative would
# combine arrays of both types. The cotangents of operands of `shard_map` have a mesh, too, so operands also pass
# through this identity.
#
# Supports JAX 0.10 to 0.12: the registries of rules for primitives.

_unplaced_p = Primitive("unplaced")  # type: ignore[no-untyped-call]


def unplaced(array: jax.Array) -> Any:
    """Returns `array` unchanged, except that its abstract value has no mesh.

    The cotangent of `array` has no mesh either. The operation has no effect in a compiled program.
    """
    return _unplaced_p.bind(array)


def _abstract(aval: jax.core.ShapedArray) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


_unplaced_p.def_impl(lambda array: array)
_unplaced_p.def_abstract_eval(_abstract)
ad.deflinear2(_unplaced_p, lambda cotangent, _: [unplaced(cotangent)])
batching.defvectorized(_unplaced_p)
mlir.register_lowering(_unplaced_p, lambda _, array: [array])
