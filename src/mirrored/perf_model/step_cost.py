"""Cost model: traces a training step for any number of replicas, and counts operations and collectives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from mirrored._blocks import contextmanager
from mirrored._jax.arrays import implementation_of, is_key, is_key_dtype, key_data
from mirrored._jax.traces import canonical_dtype
from mirrored._typing import Array, HostArray, Leaf
from mirrored.compilation.concrete import Pure, as_pure
from mirrored.errors import ArgumentError
from mirrored.perf_model.exchange import Exchange, exchanges_in
from mirrored.perf_model.step_detection import DetectedStep
from mirrored.runtime.ambient import within
from mirrored.strategies.strategy import Strategy
from mirrored.topology.device_assignment import AXIS, DeviceAssignment
from mirrored.values import structures
from mirrored.values.distributed_values import Mirrored, PerReplica

if TYPE_CHECKING:
    from mirrored.runtime.staged_values import VariableLike


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The operations, moved bytes and collectives of one replica in one training step.

    Attributes:
        replicas: The number of replicas.
        share: The number of examples per replica: the leading dimension of the first per-replica argument.
        flops: Floating-point operations, as XLA counts them before optimization.
        moved_bytes: The bytes that its operations read and write, before fusion.
        exchanges: The collectives with the other replicas.
    """

    replicas: int
    share: int
    flops: float
    moved_bytes: float
    exchanges: tuple[Exchange, ...]


@dataclasses.dataclass(frozen=True)
class ReplicaProgram:
    """The program that one replica runs in a training step, without collectives, and the program's arguments.

    Attributes:
        pure: The program, as a function of the variables' values and the arrays.
        state: The variables' current values, in the order of `pure.reads`. For a per-replica variable, the first
            replica's component with a leading dimension of 1.
        operands: The arrays. Arrays of the batch have a leading dimension of `copies`, with examples for each copy.
        is_spread: For each operand, whether it is part of the batch.
    """

    pure: Pure
    state: tuple[Any, ...]
    operands: tuple[Any, ...]
    is_spread: tuple[bool, ...]


class TracedStep:
    """A training step that can be traced again for other numbers of replicas and batch sizes.

    Args:
        observation: The detected step.

    Attributes:
        replicas: The number of replicas of the step.
        share: The number of examples per replica; 1 if no argument is per replica.
        devices: The local devices of the step's platform, with the step's own devices first.
        state_bytes: The size of the variables that the step reads.

    Raises:
        ArgumentError: The function creates variables, its per-replica batches differ in shape, or it cannot be traced.
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
        with _runs_noted() as running:
            first = self._pure(self._described, own)
        variables = first.reads
        self.state_bytes = sum(_nbytes(variable) for variable in variables)
        owners = (*observation.strategies, *(variable.strategy for variable in variables), *running)
        found = {id(one): one for one in owners if one is not None}
        self._strategies = [one for one in found.values() if one.device_assignment is not None]
        used = {id(variable): variable for variable in (*variables, *first.assigns)}
        self._variables = [one for one in used.values() if one.device_assignment is not None]
        device_assignments = [one.device_assignment for one in self._strategies]
        self._device_assignment: DeviceAssignment | None = device_assignments[0] if device_assignments else None
        self.replicas = 1 if self._device_assignment is None else self._device_assignment.num_replicas
        self.devices: tuple[jax.Device, ...] = _local_devices_like(self._device_assignment)
        if self.replicas == 1 and not any(self._spread):
            self._mark_batch_arguments()
        described = zip(self._described, self._spread, strict=True)
        self.share = next((int(one.shape[1]) for one, is_spread in described if is_spread and len(one.shape) > 1), 1)

    def _mark_batch_arguments(self) -> None:
        """Marks the arguments that form the batch.

        Candidates are the arrays that differ between calls and that no call has returned; if there are none, those that
        no call has returned; if there are none, all. Those with the leading dim of the largest one are marked.
        """
        arrays = {place for place, one in enumerate(self._described) if _has_examples(one)}
        others = arrays - self._observation.returned
        candidates = sorted((others & self._observation.differing) or others or arrays)
        if not candidates:
            return
        size = max((self._described[place] for place in candidates), key=lambda one: math.prod(one.shape)).shape[0]
        for place in candidates:
            one = self._described[place]
            if one.shape[0] == size:
                self._spread[place] = True
                self._described[place] = jax.ShapeDtypeStruct((1, *one.shape), one.dtype)

    def work(self, replicas: int, share: int) -> StepCost:
        """Traces the step for a number of replicas and a batch size, and returns XLA's cost analysis.

        Nothing is compiled or run, and the devices need not exist (`jax.sharding.AbstractMesh`).

        Args:
            replicas: The number of replicas, each on its own device.
            share: The number of examples per replica.

        Raises:
            ArgumentError: `replicas` is more than 1, and the step has no strategy; or the step raises an exception when
                it is traced for these numbers.
        """
        if self._device_assignment is None:
            if replicas > 1:
                raise _no_strategy_error()
            return self._lowered(None, replicas, share)
        elsewhere = _abstract(self._device_assignment, replicas)
        with _moved(self._strategies, self._variables, elsewhere):
            return self._lowered(elsewhere, replicas, share)

    def part(self, share: int, copies: int) -> ReplicaProgram:
        """Returns one replica's program for a batch of `share` examples.

        The result contains the arguments to run the program on `copies` devices at once.

        Raises:
            ArgumentError: The step raises an exception when it is traced for one replica with this batch size.
        """
        alone = None if self._device_assignment is None else DeviceAssignment((self.devices[0],), 1)
        with _moved(self._strategies, self._variables, alone):
            pure = self._pure(self._shapes_for(1, share), alone)
        found = zip(self._leaves, self._described, self._spread, strict=True)
        arrays = [(leaf, spread) for leaf, one, spread in found if isinstance(one, jax.ShapeDtypeStruct)]
        return ReplicaProgram(
            pure,
            tuple(variable.stored()[:1] if variable.per_replica else variable.stored() for variable in pure.reads),
            tuple(self._examples(leaf, share, copies) if spread else _plain(leaf) for leaf, spread in arrays),
            tuple(spread for _, spread in arrays),
        )

    def _examples(self, leaf: Leaf, share: int, copies: int) -> Array | HostArray:
        """Returns a batch argument resized to `copies` batches of `share` examples each.

        The argument's examples are repeated to fill the batches.
        """
        given = _plain(leaf)
        shape = np.shape(given) if isinstance(leaf, PerReplica) else (1, *np.shape(given))
        data = np.asarray(key_data(given))  # NumPy has no typed keys
        data = data.reshape(shape + data.shape[np.ndim(given) :])
        leading = (copies, share) if len(shape) > 1 and shape[1] == self.share else (copies,)
        filled = np.resize(data, leading + data.shape[len(leading) :])
        if not is_key(given):
            return filled
        return jax.random.wrap_key_data(jnp.asarray(filled), impl=implementation_of(given.dtype))

    def _lowered(self, device_assignment: DeviceAssignment | None, replicas: int, share: int) -> StepCost:
        traced = self._traced(device_assignment, replicas, share)
        costs = traced.lower(lowering_platforms=("cpu",)).cost_analysis()
        return _costs(costs, replicas, share, exchanges_in(traced.jaxpr, replicas))

    def _traced(self, device_assignment: DeviceAssignment | None, replicas: int, share: int) -> Any:
        described = self._shapes_for(replicas, share)
        pure = self._pure(described, device_assignment)
        state = [_state(variable, replicas) for variable in pure.reads]
        operands = [one for one in described if isinstance(one, jax.ShapeDtypeStruct)]
        return jax.jit(pure.call).trace(state, operands)

    def _shapes_for(self, replicas: int, share: int) -> list[Any]:
        """Returns the shapes of the step's arguments for another number of replicas and batch size."""
        return [
            _resized(one, replicas, self.share, share) if is_spread else one
            for one, is_spread in zip(self._described, self._spread, strict=True)
        ]

    def _pure(self, described: Sequence[Any], device_assignment: DeviceAssignment | None) -> Pure:
        """Returns the step as a pure function of its variables and arrays, for a given device assignment."""

        def step(*inputs: Any) -> list[Any]:
            filled = [
                _batch_argument(value, device_assignment) if is_spread else _whole_argument(leaf, value)
                for leaf, value, is_spread in zip(self._leaves, inputs, self._spread, strict=True)
            ]
            args, kwargs = self._treedef.unflatten(filled)
            with _explained(described, device_assignment):
                results, _ = structures.flatten(self._observation.function.traced_function(*args, **kwargs))
                return [_plain(result) for result in results]

        with within(strategies=self._observation.strategies):
            return as_pure(step, tuple(described), "mirrored plan")


def _costs(costs: Mapping[str, float] | None, replicas: int, share: int, exchanges: tuple[Exchange, ...]) -> StepCost:
    costs = costs or {}
    return StepCost(replicas, share, float(costs.get("flops", 0)), float(costs.get("bytes accessed", 0)), exchanges)


def _described(leaf: Leaf) -> Any:
    """Returns the shape and dtype of an argument that is an array; returns other arguments unchanged."""
    if isinstance(leaf, PerReplica) and leaf.device_assignment is not None:
        if not leaf.is_stacked and len({np.shape(component) for component in leaf.values}) > 1:
            raise _uneven_batches_error(leaf)
        leaf = leaf.stacked(leaf.device_assignment)
    elif isinstance(leaf, Mirrored):
        leaf = leaf.value
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return jax.ShapeDtypeStruct(leaf.shape, canonical_dtype(leaf.dtype))
    return leaf


def _has_examples(described: object) -> bool:
    """Returns whether an argument may be part of the batch: an array of rank 1 or more that is not a PRNG key."""
    if not isinstance(described, jax.ShapeDtypeStruct) or not described.shape or is_key_dtype(described.dtype):
        return False
    is_raw_key = described.dtype == np.uint32 and described.shape == (2,)
    return not is_raw_key


def _resized(stacked: jax.ShapeDtypeStruct, replicas: int, old_share: int, share: int) -> Any:
    """Changes the shape of a stacked batch to `replicas` replicas with `share` examples each."""
    part = tuple(stacked.shape[1:])
    if part and part[0] == old_share:
        part = (share, *part[1:])
    return jax.ShapeDtypeStruct((replicas, *part), stacked.dtype)


def _batch_argument(stacked: jax.Array, device_assignment: DeviceAssignment | None) -> Any:
    """Converts a batch of shape ``[replicas, ...]`` to the argument that the training step expects.

    This is a `PerReplica`, or without a device assignment the batch of the only replica.
    """
    if device_assignment is None:
        return stacked[0]
    return PerReplica.from_stacked(stacked, device_assignment)


def _whole_argument(leaf: Leaf, value: jax.Array) -> Any:
    """Wraps `value` in a `Mirrored` if the original argument `leaf` is one; otherwise returns `value`."""
    return Mirrored(value, leaf.num_replicas) if isinstance(leaf, Mirrored) else value


def _plain(result: Leaf) -> Any:
    """Returns the array in a per-replica or mirrored value; returns other values unchanged."""
    if isinstance(result, Mirrored):
        return result.value
    if isinstance(result, PerReplica) and result.device_assignment is not None:
        return result.stacked(result.device_assignment)
    return result


def _state(variable: VariableLike, replicas: int) -> Any:
    leading = (replicas,) if variable.per_replica else ()
    return jax.ShapeDtypeStruct((*leading, *variable.shape), variable.dtype)


def _nbytes(variable: VariableLike) -> int:
    return int(getattr(key_data(variable.stored()), "nbytes", 0))


def _local_devices_like(device_assignment: DeviceAssignment | None) -> tuple[jax.Device, ...]:
    """Returns the local devices on the platform of a device assignment, with the assignment's devices first."""
    if device_assignment is None:
        return tuple(jax.local_devices())
    own = device_assignment.addressable_devices
    return (*own, *(one for one in jax.local_devices(backend=own[0].platform) if one not in own))


def _abstract(device_assignment: DeviceAssignment, replicas: int) -> DeviceAssignment:
    """Returns a device assignment of `replicas` replicas with an abstract mesh, i.e. without real devices."""
    elsewhere = DeviceAssignment((device_assignment.devices[0],) * replicas, replicas)
    # `mesh` is a cached property. Setting the cached value replaces the mesh of real devices with an abstract one.
    elsewhere.__dict__["mesh"] = AbstractMesh((replicas,), (AXIS,), axis_types=(AxisType.Auto,))
    return elsewhere


@contextmanager
def _moved(
    strategies: Sequence[Any], variables: Sequence[Any], device_assignment: DeviceAssignment | None
) -> Iterator[None]:
    """A context manager that replaces the device assignment of strategies and variables inside the ``with`` block.

    A sync-on-read variable has one row per replica of its own device assignment.
    """
    before = [strategy._device_assignment for strategy in strategies]
    variables_before = [(variable.device_assignment, variable.num_replicas) for variable in variables]
    try:
        for strategy in strategies:
            strategy._device_assignment = device_assignment
        if device_assignment is not None:
            for variable in variables:
                variable.device_assignment = device_assignment
                variable.num_replicas = device_assignment.num_replicas
        yield
    finally:
        for strategy, own in zip(strategies, before, strict=True):
            strategy._device_assignment = own
        for variable, (own, num_replicas) in zip(variables, variables_before, strict=True):
            variable.device_assignment, variable.num_replicas = own, num_replicas


@contextmanager
def _runs_noted() -> Iterator[list[Strategy]]:
    """A context manager that yields a list of the strategies whose `run` is called inside the block."""
    found: list[Strategy] = []
    original = Strategy._run  # not `run`, of which the program may hold a bound method

    def run(self: Strategy, *args: Any, **kwargs: Any) -> Any:
        found.append(self)
        return original(self, *args, **kwargs)

    Strategy._run = run  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Strategy._run = original  # type: ignore[method-assign]


@contextmanager
def _explained(described: Sequence[Any], device_assignment: DeviceAssignment | None) -> Iterator[None]:
    """A context manager that converts an exception in the trace of a step to an `ArgumentError` with a remedy."""
    try:
        yield
    except Exception as error:
        shapes = ", ".join(str(list(one.shape)) for one in described if isinstance(one, jax.ShapeDtypeStruct))
        replicas = 1 if device_assignment is None else device_assignment.num_replicas
        reason = (str(error).splitlines() or [""])[0]
        raise ArgumentError(
            "mirrored plan",
            found=f"the step raised {type(error).__name__} when it was traced for {replicas} replica"
            f"{'s' * (replicas != 1)} with arguments of shapes {shapes or 'none'}: {reason}",
            rule="a step is predicted from its traces for other numbers of replicas and batch sizes, which resize "
            "per-replica arguments and sync-on-read variables only",
            remedy="pass the batch as arguments, as a distributed dataset yields it, and take sizes and the number of "
            "replicas from the arguments and the strategy, not from constants",
        ) from error


def _uneven_batches_error(value: PerReplica) -> ArgumentError:
    shapes = ", ".join(str(list(np.shape(component))) for component in value.values)
    return ArgumentError(
        "mirrored plan",
        found=f"most calls of the step got per-replica batches of different shapes: {shapes}",
        rule="only a compiled step is predicted, and a step with uneven batches runs eagerly",
        remedy="choose a global batch size that is a multiple of the number of replicas, or distribute the dataset "
        "with last_batch='pad' or 'drop'",
    )


def _no_strategy_error() -> ArgumentError:
    return ArgumentError(
        "mirrored plan",
        found="the step has no strategy: it calls no strategy.run, reads no mirrored variable and is not called in a "
        "strategy's scope",
        rule="a step must run on replicas, so that its time on more of them can be predicted",
        remedy="create the variables in strategy.scope() and call strategy.run in the step",
    )
