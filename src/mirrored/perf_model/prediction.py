"""Predicting the step time on more replicas, from its parts: a replica's program, the sums, and starting it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

from mirrored.errors import ArgumentError
from mirrored.perf_model.exchange import Network
from mirrored.perf_model.measurement import Instruments, Parts, Told
from mirrored.perf_model.step_cost import TracedStep
from mirrored.perf_model.step_detection import DetectedStep

REPLICA_BATCH: Final = "replica-batch"
GLOBAL_BATCH: Final = "global-batch"
ASSUMED: Final = Network(bandwidth_bytes_per_second=25e9, latency_seconds=5e-6)
"""A network of real machines, where nothing is known of it."""
_MEASURE: Final = Instruments()


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
        dispatch_seconds: Python's and JAX's part of a step: starting it.
        input_seconds: The loop's own part between steps: reading the next batch.
        shared: Whether the devices compute on the cores that start them.
        efficiency: Examples per second of each replica, in those that one replica alone would reach.
    """

    replicas: int
    share: int
    compute_seconds: float
    fixed_seconds: float
    exchange_seconds: float
    dispatch_seconds: float
    input_seconds: float
    shared: bool = False
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
        """The longer of the two; starting a step delays it where the devices have no cores of their own."""
        waits = self.dispatch_seconds if self.shared else 0.0
        return max(self.device_seconds + waits, self.host_seconds)

    @property
    def examples_per_second(self) -> float:
        """Of all replicas."""
        return self.replicas * self.share / self.step_seconds


@dataclasses.dataclass(frozen=True)
class ScalingPlan:
    """Predictions for several numbers of replicas.

    Attributes:
        alone: One replica with the batch that was observed; the measure of efficiency.
        check: The step that was observed, where it was observed, predicted like the others.
        observed_seconds: What it took.
        predictions: In ascending numbers of replicas.
        keeps: `REPLICA_BATCH` if each replica's batch stays, `GLOBAL_BATCH` if the batch of all together stays.
        network: What lies between them; None where sums were measured between the very devices.
        network_source: Where that is from, in words.
        merged: How many sums the program has, and how many exchanges are left of them.
    """

    alone: Prediction
    check: Prediction
    observed_seconds: float
    predictions: tuple[Prediction, ...]
    keeps: str
    network: Network | None
    network_source: str
    merged: tuple[int, int]


def make_plan(
    observation: DetectedStep,
    replicas: Sequence[int],
    *,
    network: Network | None = None,
    keeps: str = REPLICA_BATCH,
    speed: float = 1.0,
    shared: bool = False,
    instruments: Instruments = _MEASURE,
    told: Told | None = None,
) -> ScalingPlan:
    """Predicts the observed step on other numbers of replicas.

    A step is one replica's program, then the sums, with what it takes to start it. One replica's program is run here,
    without the sums, on one device with several sizes of its batch. Replicas that are to share this machine are as
    many devices that run it at once (that is what sharing its cores costs them; beyond the devices there are, in
    proportion), and sums are measured between as many. What more replicas exchange, and whether each has more or less
    to do, is read off the step traced on abstract devices. The step itself is never run for a prediction; where it was
    observed it is predicted too (`ScalingPlan.check`), so that the two can be compared.

    Context: cross-replica, with no other program in the process. Takes one to three seconds for each number of
    replicas that share this machine or has a batch of its own, most of them to compile.

    Args:
        observation: A program's step, as `observe` gives it.
        replicas: Numbers of replicas.
        network: Between the replicas of the plan. If None, as measured here if they share this machine or there are
            several accelerators, else `ASSUMED`.
        keeps: Whether each replica's batch stays as it is, or the batch of all together.
        speed: How fast a replica's device is, in units of one device here that has this machine to itself. Not for
            replicas that share this machine.
        shared: Whether the replicas share this machine, as simulated devices do.
        instruments: How parts are measured.
        told: Called before each measurement with what it is, its number and how many there are.

    Returns:
        The plan.

    Raises:
        ArgumentError: A number of replicas below one, an unknown `keeps`, or no strategy in the step.
    """
    if keeps not in (REPLICA_BATCH, GLOBAL_BATCH) or any(count < 1 for count in replicas) or speed <= 0:
        raise ArgumentError(
            "mirrored.perf_model.make_plan",
            found=f"replicas={list(replicas)}, keeps={keeps!r}, speed={speed}",
            rule=f"replicas are 1 or more, keeps is {REPLICA_BATCH!r} or {GLOBAL_BATCH!r}, speed is positive",
            remedy="replicas=[8, 64], keeps='replica-batch', speed=1.0",
        )
    step = TracedStep(observation)
    wanted = [(count, _share(step, count, keeps)) for count in sorted(set(replicas))]
    parts = Parts(step, wanted, here=shared, network=network, instruments=instruments, told=told or _silent)
    model = _Model(parts, observation, network, speed)
    predict = functools.partial(model.here, network=network) if shared else model.elsewhere
    alone = predict(1, step.share)
    exchanges = parts.work(max(replicas)).exchanges
    return ScalingPlan(
        alone,
        model.here(step.replicas, step.share),
        observation.step_seconds,
        tuple(_with_efficiency(predict(count, share), alone) for count, share in wanted),
        keeps,
        None if shared and network is None else model.network,
        model.network_source,
        (sum(one.merged for one in exchanges), len(exchanges)),
    )


class _Model:
    def __init__(self, parts: Parts, observation: DetectedStep, network: Network | None, speed: float) -> None:
        self._parts = parts
        self._observation = observation
        self._given = network
        self._speed = speed
        here = parts.rehearsal(min(parts.step.replicas, parts.local), parts.step.share)
        # Of starting a step, what does not depend on the devices: finding the program, handing over the state.
        self._python_seconds = max(0.0, observation.dispatch_seconds - here.dispatch_seconds)
        self.network, self.network_source = self._chosen_network()

    def _chosen_network(self) -> tuple[Network, str]:
        parts = self._parts
        if self._given is not None:
            return self._given, "as given"
        if parts.is_network:
            return parts.sums(parts.local).network, f"as measured between {parts.local} devices here"
        return ASSUMED, "assumed: give --bandwidth and --latency"

    def elsewhere(self, replicas: int, share: int) -> Prediction:
        """On devices of their own, like one here that has the machine to itself, or faster."""
        parts, observed = self._parts, self._observation
        compute = parts.compute_seconds(share) * parts.more(replicas) / self._speed
        return Prediction(
            replicas,
            share,
            compute_seconds=compute,
            fixed_seconds=compute * parts.fixed_share(share),
            exchange_seconds=sum(one.seconds(self.network) for one in parts.work(replicas).exchanges),
            dispatch_seconds=observed.dispatch_seconds,
            # The observed loop fed all replicas of this machine.
            input_seconds=observed.between_seconds * share / (parts.step.share * parts.step.replicas),
        )

    def here(self, replicas: int, share: int, network: Network | None = None) -> Prediction:
        """On this machine, which its devices share; on more devices than there are, in proportion."""
        parts, observed = self._parts, self._observation
        devices = min(replicas, parts.local)
        crowd = replicas / devices
        rehearsal = parts.rehearsal(devices, share)
        compute = rehearsal.compute_seconds * parts.more(replicas) * crowd
        examples = replicas * share / (parts.step.replicas * parts.step.share)
        return Prediction(
            replicas,
            share,
            compute_seconds=compute,
            fixed_seconds=compute * parts.fixed_share(share),
            exchange_seconds=self._exchange_here(replicas, devices, network),
            dispatch_seconds=self._python_seconds + rehearsal.dispatch_seconds * crowd,
            input_seconds=observed.between_seconds * examples,
            shared=True,
        )

    def _exchange_here(self, replicas: int, devices: int, network: Network | None) -> float:
        exchanges = self._parts.work(replicas).exchanges
        if network is not None:
            return sum(one.seconds(network) for one in exchanges)
        if devices == 1:
            return 0.0
        sums = self._parts.sums(devices)
        return replicas / devices * sum(sums.seconds(one) for one in exchanges)


def _share(step: TracedStep, replicas: int, keeps: str) -> int:
    if keeps == REPLICA_BATCH:
        return step.share
    return max(1, -(-step.replicas * step.share // replicas))


def _with_efficiency(found: Prediction, alone: Prediction) -> Prediction:
    per_replica = found.examples_per_second / found.replicas
    return dataclasses.replace(found, efficiency=per_replica / alone.examples_per_second)


def _silent(what: str, number: int, total: int) -> None:
    del what, number, total
