"""Predicting the step time on more replicas: what was measured, scaled by what a replica has to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from mirrored.errors import ArgumentError
from mirrored.planning.exchange import Network
from mirrored.planning.machine import Machine
from mirrored.planning.observing import Observation
from mirrored.planning.work import Step, Work

REPLICA_BATCH: Final = "replica-batch"
GLOBAL_BATCH: Final = "global-batch"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One number of replicas.

    Attributes:
        replicas: How many.
        share: Examples of each in one step.
        compute_seconds: A replica's forward, backward and update.
        fixed_seconds: The part of it that a smaller batch would not shorten: the update, the weights' way through
            memory.
        exchange_seconds: Until the gradients are summed.
        dispatch_seconds: Python's part of a step, which runs beside the device's.
        input_seconds: The loop's own part between steps: reading the next batch.
        efficiency: Examples per second of each replica, in those that one replica alone would reach.
    """

    replicas: int
    share: int
    compute_seconds: float
    fixed_seconds: float
    exchange_seconds: float
    dispatch_seconds: float
    input_seconds: float
    efficiency: float = 1.0

    @property
    def device_seconds(self) -> float:
        """Compute, then exchange: the sum waits for the last gradient."""
        return self.compute_seconds + self.exchange_seconds

    @property
    def host_seconds(self) -> float:
        """Python's part and the loop's, which run ahead of the device."""
        return self.dispatch_seconds + self.input_seconds

    @property
    def step_seconds(self) -> float:
        """The longer of the two."""
        return max(self.device_seconds, self.host_seconds)

    @property
    def examples_per_second(self) -> float:
        """Of all replicas."""
        return self.replicas * self.share / self.step_seconds


@dataclasses.dataclass(frozen=True)
class Plan:
    """Predictions for several numbers of replicas.

    Attributes:
        alone: One replica with the batch that was observed; the measure of efficiency.
        predictions: In ascending numbers of replicas.
        keeps: `REPLICA_BATCH` if each replica's batch stays, `GLOBAL_BATCH` if the batch of all together stays.
        network: What lies between them.
        merged: How many sums the program has, and how many exchanges are left of them.
    """

    alone: Prediction
    predictions: tuple[Prediction, ...]
    keeps: str
    network: Network
    merged: tuple[int, int]


def make_plan(
    observation: Observation,
    replicas: Sequence[int],
    *,
    network: Network,
    machine: Machine,
    observed_network: Network | None = None,
    keeps: str = REPLICA_BATCH,
    speed: float = 1.0,
    shared: bool = False,
) -> Plan:
    """Predicts the observed step on other numbers of replicas.

    The observed step time, less exchange and dispatch, is the time for the work of all observed replicas on this
    machine. A replica elsewhere gets a machine of `speed` times that. What depends on the batch and what does not is
    told apart by compiling the step for one replica with two sizes of batch; what more replicas exchange is read off
    the step traced on abstract devices.

    Args:
        observation: A program's step, as `observe` gives it.
        replicas: Numbers of replicas.
        network: Between the replicas of the plan.
        machine: Rates of this machine, which weigh computing against moving bytes.
        observed_network: Between the observed replicas, if there were several.
        keeps: Whether each replica's batch stays as it is, or the batch of all together.
        speed: How fast a replica's device is, in units of this whole machine.
        shared: Whether the replicas share this machine, as simulated devices do.

    Returns:
        The plan.

    Raises:
        ArgumentError: A number of replicas below one, an unknown `keeps`, or no strategy in the step.
    """
    if keeps not in (REPLICA_BATCH, GLOBAL_BATCH) or any(count < 1 for count in replicas) or speed <= 0:
        raise ArgumentError(
            "mirrored.planning.make_plan",
            found=f"replicas={list(replicas)}, keeps={keeps!r}, speed={speed}",
            rule=f"replicas are 1 or more, keeps is {REPLICA_BATCH!r} or {GLOBAL_BATCH!r}, speed is positive",
            remedy="replicas=[8, 64], keeps='replica-batch', speed=1.0",
        )
    model = _Model(Step(observation), observation, machine, observed_network, speed, shared)
    alone = model.predict(1, model.step.share, network)
    made = []
    for count in sorted(set(replicas)):
        share = model.step.share if keeps == REPLICA_BATCH else max(1, -(-model.global_batch // count))
        found = model.predict(count, share, network)
        per_replica = found.examples_per_second / count
        made.append(dataclasses.replace(found, efficiency=per_replica / alone.examples_per_second))
    exchanges = model.work(max(replicas)).exchanges
    return Plan(alone, tuple(made), keeps, network, (sum(one.merged for one in exchanges), len(exchanges)))


class _Model:
    def __init__(
        self,
        step: Step,
        observation: Observation,
        machine: Machine,
        observed_network: Network | None,
        speed: float,
        shared: bool,
    ) -> None:
        self.step = step
        self._observation = observation
        self._machine = machine
        self._shared = shared
        self._works: dict[int, Work] = {}
        self._fixed, self._per_example = self._line()
        exchange = 0.0
        if observed_network is not None:
            exchange = sum(one.seconds(observed_network) for one in self.work(step.replicas).exchanges)
        computing = max(
            observation.step_seconds - exchange - observation.dispatch_seconds, 0.1 * observation.step_seconds
        )
        # This machine did the work of all observed replicas in that time.
        ideal = step.replicas * self._more(step.replicas) * (self._fixed + self._per_example * step.share)
        self._slowdown = computing / max(ideal, 1e-12) / speed

    @property
    def global_batch(self) -> int:
        return self.step.replicas * self.step.share

    def work(self, replicas: int) -> Work:
        """The work of one of so many replicas, each with the observed share; traced once."""
        if replicas not in self._works:
            self._works[replicas] = self.step.work(replicas, self.step.share)
        return self._works[replicas]

    def predict(self, replicas: int, share: int, network: Network) -> Prediction:
        together = replicas if self._shared else 1
        scale = self._slowdown * self._more(replicas) * together
        return Prediction(
            replicas,
            share,
            compute_seconds=scale * (self._fixed + self._per_example * share),
            fixed_seconds=scale * self._fixed,
            exchange_seconds=sum(one.seconds(network) for one in self.work(replicas).exchanges),
            dispatch_seconds=self._observation.dispatch_seconds,
            input_seconds=self._observation.between_seconds * share * together / (self.step.share * self._fed),
        )

    @property
    def _fed(self) -> int:
        """How many replicas were fed by the observed loop: all of this machine."""
        return self.step.replicas

    def _line(self) -> tuple[float, float]:
        """Seconds at full speed that do not depend on the batch, and seconds for each example of one replica.

        The line through the compiled program's work at two shares.
        """
        share = self.step.share
        other = share // 2 or 2 * share
        here, there = (self._ideal(self.step.compiled(size)) for size in (share, other))
        slope = max(0.0, (here - there) / (share - other))
        return max(0.0, here - slope * share), slope

    def _more(self, replicas: int) -> float:
        """What each of so many replicas has to do, in the work of a single one: a share of the reduction, say."""
        return self._ideal(self.work(replicas)) / max(self._ideal(self.work(1)), 1e-12)

    def _ideal(self, work: Work) -> float:
        return self._machine.seconds(work.flops, work.moved_bytes)
