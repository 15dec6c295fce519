"""Runs reductions as compiled programs do: over local components inside a `shard_map` body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from mirrored._jax.bit_identical import jit
from mirrored.collectives import CrossDeviceOps, Group
from mirrored.topology.device_assignment import AXIS

Body = Callable[..., Any]


def over_devices(body: Body, devices: int, *, stacked: int, bit_identical: bool = False, equal: bool = True) -> Any:
    """`body(*local parts [K, ...], *others)` on every device, jitted; `stacked` of its arguments are ``[R, ...]``."""
    if devices == 1:
        return jit(body, bit_identical=bit_identical)
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,), axis_types=(AxisType.Auto,))
    own, shared = PartitionSpec(AXIS), PartitionSpec()

    def mapped(*args: Any) -> Any:
        specs = (own,) * stacked + (shared,) * (len(args) - stacked)
        out = shared if equal else own
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)(*args)

    return jit(mapped, bit_identical=bit_identical)


def group_of(devices: int, replicas: int) -> Group:
    return Group(axis=AXIS if devices > 1 else None, devices=devices, local=replicas // devices)


def reduction(algorithm: CrossDeviceOps, op: Any, devices: int, replicas: int, count: int) -> Any:
    """Returns a compiled reduction of `count` arrays ``[R, ...]`` to the results of every device, ``[D, ...]``."""
    group = group_of(devices, replicas)

    def body(*parts: Any) -> list[Any]:
        lists = [[part[k] for k in range(group.local)] for part in parts]
        return [result[None] for result in algorithm.reduce_arrays(op, lists, group)]

    return over_devices(body, devices, stacked=count, bit_identical=algorithm.requires_bit_identity, equal=False)


def collectives_in(text: str) -> dict[str, int]:
    """Returns the number of instructions of each collective in optimised HLO."""
    names = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
    found = {name: text.count(f" {name}(") + text.count(f" {name}-start(") for name in names}
    return {name: count for name, count in found.items() if count}


def same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True))
