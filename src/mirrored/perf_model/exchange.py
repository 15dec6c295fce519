"""Finds the collectives in a traced training step, and predicts their times on a given network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mirrored._jax.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, collectives_in, jaxprs_in
from mirrored.topology.device_assignment import AXIS

_PASSES = {"psum": 2, "psum_invariant": 2, "pmax": 2, "pmin": 2, "all_gather": 1, "all_gather_invariant": 1,
           "reduce_scatter": 1, "all_to_all": 1}  # fmt: skip
"""The number of passes of the payload around the ring. An all-reduce is a reduce-scatter and an all-gather."""


@dataclasses.dataclass(frozen=True)
class Network:
    """The bandwidth and latency of the network between the replicas' devices.

    Attributes:
        bandwidth_bytes_per_second: The bandwidth from one device to the next.
        latency_seconds: The time until the first byte arrives.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A group of collectives of one kind in a training step, which the compiler combines into one collective.

    Attributes:
        kind: The name of the JAX primitive.
        group_size: The number of devices in a group.
        payload_bytes: The total size of the reduced arrays, or of all gathered parts.
        merged: The number of operations of the program that were combined.
        times: The number of executions per step (more than one inside a loop).
    """

    kind: str
    group_size: int
    payload_bytes: int
    merged: int = 1
    times: int = 1

    @property
    def counted_bytes(self) -> float:
        """The number of bytes that XLA's cost analysis counts for the operands and results of these collectives."""
        whole = 2.0 if _PASSES.get(self.kind, 1) == 2 else 1.0 + 1.0 / self.group_size
        return whole * self.times * self.payload_bytes

    def seconds(self, network: Network) -> float:
        """Predicts the time that this group of collectives takes per training step on a given network.

        The model is the faster of two algorithms: a ring, where each device forwards every byte once or twice in
        pieces, and a tree, which sends the whole payload at each level but has few levels.

        Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
        Int. J. High Perf. Comp. Appl. 19 (2005).
        """
        if self.group_size < 2:
            return 0.0
        passes, size = _PASSES.get(self.kind, 1), self.group_size
        through = self.payload_bytes / network.bandwidth_bytes_per_second
        ring = passes * ((size - 1) / size * through + (size - 1) * network.latency_seconds)
        tree = passes * math.ceil(math.log2(size)) * (through + network.latency_seconds)
        return self.times * min(ring, tree)


@dataclasses.dataclass(frozen=True)
class _Found:
    kind: str
    groups: Any
    payload_bytes: int
    group_size: int
    times: int


def exchanges_in(jaxpr: Jaxpr | ClosedJaxpr, devices: int) -> tuple[Exchange, ...]:
    """Returns the collectives in a traced program, grouped as the compiler combines them."""
    merged: dict[Any, list[_Found]] = {}
    for found in _walk(jaxpr, devices, 1):
        merged.setdefault((found.kind, found.groups, found.times), []).append(found)
    return tuple(
        Exchange(kind, same[0].group_size, sum(one.payload_bytes for one in same), len(same), times)
        for (kind, _, times), same in merged.items()
    )


def _walk(jaxpr: Jaxpr | ClosedJaxpr, devices: int, times: int) -> Iterator[_Found]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if collectives_in([equation], AXIS):
            yield _found(equation, devices, times)
            continue
        inner_times = times * int(equation.params.get("length", 1)) if equation.primitive.name == "scan" else times
        for value in equation.params.values():
            for inner in jaxprs_in(value):
                yield from _walk(inner, devices, inner_times)


def _found(equation: JaxprEqn, devices: int, times: int) -> _Found:
    groups = equation.params.get("axis_index_groups")
    size = devices if groups is None else len(groups[0])
    kind = equation.primitive.name
    arrays: Sequence[Any] = equation.outvars if kind.startswith("all_gather") else equation.invars
    payload = sum(math.prod(one.aval.shape) * one.aval.dtype.itemsize for one in arrays)
    return _Found(kind, None if groups is None else tuple(map(tuple, groups)), payload, size, times)
