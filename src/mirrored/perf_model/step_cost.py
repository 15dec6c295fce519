"""What one replica computes and exchanges in a step, for any number of replicas, on devices that need not exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from mirrored._jax.traces import canonical_dtype
from mirrored.compilation.export import Pure, as_pure
from mirrored.errors import ArgumentError
from mirrored.perf_model.exchange import Exchange, exchanges_in
from mirrored.perf_model.step_detection import DetectedStep
from mirrored.runtime.ambient import within
from mirrored.topology.device_assignment import AXIS, DeviceAssignment
from mirrored.values import structures
from mirrored.values.distributed_values import Mirrored, PerReplica


@dataclasses.dataclass(frozen=True)
class StepCost:
    """One step of one replica.

    Attributes:
        replicas: Of how many.
        share: Examples in its part of the batch: the leading dimension of the first per-replica argument.
        flops: Operations on floats, as XLA counts them before it optimises.
        moved_bytes: Read and written by its operations, before any are fused.
        exchanges: What it exchanges with the others.
    """

    replicas: int
    share: int
    flops: float
    moved_bytes: float
    exchanges: tuple[Exchange, ...]


@dataclasses.dataclass(frozen=True)
class BatchShare:
    """One replica's part of a step, ready to run: its program exchanges nothing.

    Attributes:
        pure: The program, as a function of the variables' values and the arrays.
        state: The variables' values as they are now, in the order of `pure.reads`; of per-replica ones the first
            replica's, with a leading dimension of 1.
        operands: The arrays. Those of the batch have a leading dimension of `copies`, with examples for each.
        is_spread: Which of them are parts of the batch.
    """

    pure: Pure
    state: tuple[Any, ...]
    operands: tuple[Any, ...]
    is_spread: tuple[bool, ...]


class TracedStep:
    """An observed step, taken apart so that it can be traced for other numbers of replicas.

    Args:
        observation: The step.

    Attributes:
        replicas: How many replicas it has.
        share: Examples in one replica's part of the batch; 1 where nothing is per replica.
        devices: Those of this process that are like the step's own, the step's first.

    Raises:
        ArgumentError: It makes several steps in one call, or makes variables.
    """

    def __init__(self, observation: DetectedStep) -> None:
        self._observation = observation
        self._leaves, self._treedef = structures.flatten((observation.args, observation.kwargs))
        self._spread = [isinstance(leaf, PerReplica) and leaf.device_assignment is not None for leaf in self._leaves]
        own = next(
            (leaf.device_assignment for leaf, is_spread in zip(self._leaves, self._spread, strict=True) if is_spread),
            None,
        )
        self._described = [_described(leaf) for leaf in self._leaves]
        variables = self._pure(self._described, own).reads
        found = {id(one): one for one in (*observation.strategies, *(v.strategy for v in variables)) if one is not None}
        self._strategies = [one for one in found.values() if one.device_assignment is not None]
        device_assignments = [one.device_assignment for one in self._strategies]
        self._device_assignment: DeviceAssignment | None = device_assignments[0] if device_assignments else None
        self.replicas = 1 if self._device_assignment is None else self._device_assignment.num_replicas
        self.devices: tuple[jax.Device, ...] = _like(self._device_assignment)
        if self.replicas == 1:
            self._spread_the_batch()
        described = zip(self._described, self._spread, strict=True)
        self.share = next((int(one.shape[1]) for one, is_spread in described if is_spread and len(one.shape) > 1), 1)

    def _spread_the_batch(self) -> None:
        """The only replica gets plain arrays: those whose leading dimension is the first one's are the batch."""
        arrays = [one for one in self._described if isinstance(one, jax.ShapeDtypeStruct) and one.shape]
        for place, one in enumerate(self._described):
            if self._spread[place] or one not in arrays or one.shape[0] != arrays[0].shape[0]:
                continue
            self._spread[place] = True
            self._described[place] = jax.ShapeDtypeStruct((1, *one.shape), one.dtype)

    def work(self, replicas: int, share: int) -> StepCost:
        """Traces the step again for so many replicas with such shares, and asks XLA what it costs.

        Nothing is compiled or run, and no such devices are needed (`jax.sharding.AbstractMesh`).

        Args:
            replicas: How many, each on a device of its own.
            share: Examples of each.

        Raises:
            ArgumentError: The step has no strategy, and more than one replica was asked for.
            Exception: Whatever the program raises when it is traced with that share.
        """
        if self._device_assignment is None:
            if replicas > 1:
                raise _no_strategy()
            return self._lowered(None, replicas, share)
        elsewhere = _abstract(self._device_assignment, replicas)
        with _moved(self._strategies, elsewhere):
            return self._lowered(elsewhere, replicas, share)

    def part(self, share: int, copies: int) -> BatchShare:
        """One replica's program with this share, and arrays for so many replicas that run it without each other."""
        alone = None if self._device_assignment is None else DeviceAssignment((self.devices[0],), 1)
        with _moved(self._strategies, alone):
            pure = self._pure(self._for(1, share), alone)
        found = zip(self._leaves, self._described, self._spread, strict=True)
        arrays = [(leaf, spread) for leaf, one, spread in found if isinstance(one, jax.ShapeDtypeStruct)]
        return BatchShare(
            pure,
            tuple(variable.stored()[:1] if variable.per_replica else variable.stored() for variable in pure.reads),
            tuple(self._examples(leaf, share, copies) if spread else _plain(leaf) for leaf, spread in arrays),
            tuple(spread for _, spread in arrays),
        )

    def _examples(self, leaf: Any, share: int, copies: int) -> np.ndarray[Any, Any]:
        """The leaf's examples, over and over, for so many replicas."""
        stacked = np.asarray(_plain(leaf))
        if not isinstance(leaf, PerReplica):
            stacked = stacked[None]
        if stacked.ndim < 2 or stacked.shape[1] != self.share:
            return np.resize(stacked, (copies, *stacked.shape[1:]))
        return np.resize(stacked, (copies, share, *stacked.shape[2:]))

    def _lowered(self, device_assignment: DeviceAssignment | None, replicas: int, share: int) -> StepCost:
        traced = self._traced(device_assignment, replicas, share)
        costs = traced.lower(lowering_platforms=("cpu",)).cost_analysis()
        return _costs(costs, replicas, share, exchanges_in(traced.jaxpr, replicas))

    def _traced(self, device_assignment: DeviceAssignment | None, replicas: int, share: int) -> Any:
        described = self._for(replicas, share)
        pure = self._pure(described, device_assignment)
        state = [_state(variable, replicas) for variable in pure.reads]
        operands = [one for one in described if isinstance(one, jax.ShapeDtypeStruct)]
        return jax.jit(pure.call).trace(state, operands)

    def _for(self, replicas: int, share: int) -> list[Any]:
        """What the leaves would be with so many replicas and such shares."""
        return [
            _resized(one, replicas, self.share, share) if is_spread else one
            for one, is_spread in zip(self._described, self._spread, strict=True)
        ]

    def _pure(self, described: Sequence[Any], device_assignment: DeviceAssignment | None) -> Pure:
        """The step as a function of its variables and arrays, on replicas that live as `device_assignment` says."""

        def step(*inputs: Any) -> list[Any]:
            filled = [
                _filled(value, device_assignment) if is_spread else _filled_whole(leaf, value)
                for leaf, value, is_spread in zip(self._leaves, inputs, self._spread, strict=True)
            ]
            args, kwargs = structures.unflatten(self._treedef, filled)
            results, _ = structures.flatten(self._observation.function.python_function(*args, **kwargs))
            return [_plain(result) for result in results]

        with within(strategies=self._observation.strategies):
            return as_pure(step, tuple(described), "mirrored plan")


def _costs(costs: Any, replicas: int, share: int, exchanges: tuple[Exchange, ...]) -> StepCost:
    costs = costs or {}
    return StepCost(replicas, share, float(costs.get("flops", 0)), float(costs.get("bytes accessed", 0)), exchanges)


def _described(leaf: Any) -> Any:
    """A leaf of the arguments, its arrays without their memory; what is no array, as it is."""
    if isinstance(leaf, PerReplica) and leaf.device_assignment is not None:
        leaf = leaf.stacked(leaf.device_assignment)
    elif isinstance(leaf, Mirrored):
        leaf = leaf.value
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return jax.ShapeDtypeStruct(leaf.shape, canonical_dtype(leaf.dtype))
    return leaf


def _resized(stacked: Any, replicas: int, old_share: int, share: int) -> Any:
    """For so many replicas; a leading dimension of a replica's part that is its share of the batch becomes `share`."""
    part = tuple(stacked.shape[1:])
    if part and part[0] == old_share:
        part = (share, *part[1:])
    return jax.ShapeDtypeStruct((replicas, *part), stacked.dtype)


def _filled(stacked: Any, device_assignment: DeviceAssignment | None) -> Any:
    """What stands in the place of a leaf that is part of the batch."""
    if device_assignment is None:
        return stacked[0]
    return PerReplica.from_stacked(stacked, device_assignment)


def _filled_whole(leaf: Any, value: Any) -> Any:
    """What stands in the place of another leaf: `value` as the leaf's kind."""
    return Mirrored(value, leaf.num_replicas) if isinstance(leaf, Mirrored) else value


def _plain(result: Any) -> Any:
    """A leaf of the results without what says on which replicas it lies."""
    if isinstance(result, Mirrored):
        return result.value
    if isinstance(result, PerReplica) and result.device_assignment is not None:
        return result.stacked(result.device_assignment)
    return result


def _state(variable: Any, replicas: int) -> Any:
    leading = (replicas,) if variable.per_replica else ()
    return jax.ShapeDtypeStruct((*leading, *variable.shape), variable.dtype)


def _like(device_assignment: DeviceAssignment | None) -> tuple[jax.Device, ...]:
    """The devices of this process that are of the layout's kind, its own first."""
    if device_assignment is None:
        return tuple(jax.local_devices())
    own = device_assignment.addressable_devices
    return (*own, *(one for one in jax.local_devices(backend=own[0].platform) if one not in own))


def _abstract(device_assignment: DeviceAssignment, replicas: int) -> DeviceAssignment:
    """A layout of so many devices that are only counted."""
    elsewhere = DeviceAssignment((device_assignment.devices[0],) * replicas, replicas)
    # The mesh is made on first use from the devices; here it is one of devices without identity.
    elsewhere.__dict__["mesh"] = AbstractMesh((replicas,), (AXIS,), axis_types=(AxisType.Auto,))
    return elsewhere


@contextmanager
def _moved(strategies: Sequence[Any], device_assignment: DeviceAssignment | None) -> Iterator[None]:
    """Lets strategies believe, for the block, that their replicas live elsewhere."""
    before = [strategy._device_assignment for strategy in strategies]
    try:
        for strategy in strategies:
            strategy._device_assignment = device_assignment
        yield
    finally:
        for strategy, own in zip(strategies, before, strict=True):
            strategy._device_assignment = own


def _no_strategy() -> ArgumentError:
    return ArgumentError(
        "mirrored plan",
        found="a step without a strategy: it reads no mirrored variable and is called in no strategy's scope",
        rule="a plan for several replicas needs a step that runs on replicas",
        remedy="make the variables in strategy.scope() and call strategy.run in the step",
    )
