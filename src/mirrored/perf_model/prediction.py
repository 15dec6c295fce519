"""Predicts step times on more replicas from measured times of compute, all-reduces and dispatch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Final

from mirrored.errors import ArgumentError
from mirrored.perf_model.compute_benchmark import ComputeBenchmark
from mirrored.perf_model.exchange import Network
from mirrored.perf_model.measurement import Instruments, Parts, ReportProgress
from mirrored.perf_model.step_cost import TracedStep
from mirrored.perf_model.step_detection import DetectedStep

REPLICA_BATCH: Final = "replica-batch"
GLOBAL_BATCH: Final = "global-batch"
ASSUMED: Final = Network(bandwidth_bytes_per_second=25e9, latency_seconds=5e-6)
"""The network that a prediction assumes if it is neither given nor measured."""
_MEASURE: Final = Instruments()


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted time of a training step, and the times of its parts, for one number of replicas.

    Attributes:
        replicas: The number of replicas.
        share: The number of examples per replica in one step; of the replica with the most if they are uneven.
        compute_seconds: A replica's forward pass, backward pass and update.
        fixed_seconds: The part of `compute_seconds` that does not depend on the batch: the update, and reading and
            writing the weights.
        exchange_seconds: The all-reduce of the gradients.
        dispatch_seconds: Python's and JAX's part of a step, which starts it.
        input_seconds: The loop's own part between steps, such as reading the next batch.
        shared: Whether the devices compute on the CPU cores of the host, which dispatches the steps.
        efficiency: Scaling efficiency: examples per second and replica, relative to a single replica.
        examples: The number of examples of all replicas in one step; None: `share` on each of them. A fixed global
            batch can have fewer.
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
    examples: int | None = None

    @property
    def device_seconds(self) -> float:
        """The predicted time of a step on the devices: compute plus all-reduce, without overlap.

        The all-reduce waits for the last gradient.
        """
        return self.compute_seconds + self.exchange_seconds

    @property
    def host_seconds(self) -> float:
        """The predicted time of a step on the host: dispatch plus input, which overlap with the devices' work."""
        return self.dispatch_seconds + self.input_seconds

    @property
    def step_seconds(self) -> float:
        """The predicted time of a whole training step: the longer of device time and host time.

        If the devices compute on the host's cores, dispatch adds to the device time.
        """
        waits = self.dispatch_seconds if self.shared else 0.0
        return max(self.device_seconds + waits, self.host_seconds)

    @property
    def examples_per_second(self) -> float:
        """The predicted number of examples that all replicas together process per second."""
        examples = self.replicas * self.share if self.examples is None else self.examples
        return examples / self.step_seconds


@dataclasses.dataclass(frozen=True)
class ScalingPlan:
    """The predicted step times for several numbers of replicas, with the baseline and the assumed network.

    Attributes:
        alone: One replica with the detected batch size; the baseline of efficiency.
        check: The prediction for the detected step itself, on the devices where it ran.
        observed_seconds: The measured time of that step.
        predictions: The predictions, in ascending numbers of replicas.
        keeps: `REPLICA_BATCH` for a fixed per-replica batch (weak scaling), `GLOBAL_BATCH` for a fixed global batch
            (strong scaling).
        network: The network between the replicas; None if all-reduces were measured on the devices themselves.
        network_source: The origin of `network`, as text.
        merged: The number of collectives in the program, and the number of exchanges after merging.
        state_bytes: The size of the step's variables.
        steps_per_call: The number of steps that the program runs per call. All times are per step.
    """

    alone: Prediction
    check: Prediction
    observed_seconds: float
    predictions: tuple[Prediction, ...]
    keeps: str
    network: Network | None
    network_source: str
    merged: tuple[int, int]
    state_bytes: int = 0
    steps_per_call: int = 1


def make_plan(
    observation: DetectedStep,
    replicas: Sequence[int],
    *,
    network: Network | None = None,
    keeps: str = REPLICA_BATCH,
    speed: float = 1.0,
    shared: bool = False,
    instruments: Instruments = _MEASURE,
    report: ReportProgress | None = None,
) -> ScalingPlan:
    """Returns a scaling plan that predicts a training step's time for each number of replicas.

    The model of a step is one replica's program, followed by the all-reduces, plus dispatch.

    - *Compute*: this function runs one replica's program without collectives, on one device, for several batch sizes.
      For replicas that share this machine it runs the program on that number of devices at once, which measures the
      contention. If there are fewer devices, the time is scaled in proportion.
    - *Exchange*: for replicas that share this machine, all-reduces are measured on that number of devices.
    - *Costs*: the step is traced on abstract devices to find what more replicas exchange, and whether each computes
      more or less.

    The step itself never runs for a prediction. `ScalingPlan.check` is the prediction for the detected configuration,
    to compare with the measured time.

    Context: cross-replica, with no other program in the process. It takes one to three seconds, mostly compilation, for
    each number of replicas that share this machine or that has a different batch size.

    Args:
        observation: A program's step, from `detect_step`.
        replicas: The numbers of replicas.
        network: The network between the replicas of the plan. If None, it is measured if the replicas share this
            machine or there are several accelerators, else `ASSUMED`.
        keeps: The fixed quantity: `REPLICA_BATCH` (weak scaling) or `GLOBAL_BATCH` (strong scaling).
        speed: The speed of a replica's device, relative to a local device that does not share this machine. Ignored for
            replicas that share this machine.
        shared: Whether the replicas share this machine, as simulated devices do.
        instruments: The microbenchmarks.
        report: Called before each measurement with its description, its index and the number of measurements.

    Returns:
        The plan.

    Raises:
        ArgumentError: There is no number of replicas or one is less than 1, `keeps` is unknown, `speed` is not
            positive, or the step has no strategy.
    """
    are_numbers = min(replicas, default=0) >= 1 and 0 < speed < math.inf
    if keeps not in (REPLICA_BATCH, GLOBAL_BATCH) or not are_numbers:
        raise ArgumentError(
            "mirrored.perf_model.make_plan",
            found=f"replicas={list(replicas)}, keeps={keeps!r}, speed={speed}",
            rule="replicas must be one or more numbers, each at least 1, "
            f"keeps {REPLICA_BATCH!r} or {GLOBAL_BATCH!r}, and speed positive",
            remedy="pass valid values, for example replicas=[8, 64], keeps='replica-batch', speed=1.0",
        )
    step = TracedStep(observation)
    wanted = [(count, _share(step, count, keeps)) for count in sorted(set(replicas))]
    examples = step.replicas * step.share if keeps == GLOBAL_BATCH else None
    parts = Parts(step, wanted, here=shared, network=network, instruments=instruments, report=report or _silent)
    model = _Model(parts, observation, network, speed)
    predict = functools.partial(model.here, network=network) if shared else model.elsewhere
    alone = predict(1, step.share)
    exchanges = parts.work(max(replicas)).exchanges
    return ScalingPlan(
        alone,
        model.here(step.replicas, step.share),
        observation.step_seconds,
        tuple(_with_efficiency(predict(count, share, examples=examples), alone) for count, share in wanted),
        keeps,
        None if shared and network is None else model.network,
        model.network_source,
        (sum(one.merged for one in exchanges), len(exchanges)),
        step.state_bytes,
        observation.steps_per_call,
    )


class _Model:
    def __init__(self, parts: Parts, observation: DetectedStep, network: Network | None, speed: float) -> None:
        self._parts = parts
        self._observation = observation
        self._given = network
        self._speed = speed
        here = parts.compute_benchmark(min(parts.step.replicas, parts.num_local_devices), parts.step.share)
        # The part of dispatch that does not depend on the devices: looking up the program, passing the state.
        self._python_seconds = max(0.0, observation.dispatch_seconds - self._started(here))
        self.network, self.network_source = self._chosen_network()

    def _started(self, measured: ComputeBenchmark) -> float:
        """Returns the time to start the devices for one step; a call with several steps starts them once."""
        return measured.dispatch_seconds / self._observation.steps_per_call

    def _chosen_network(self) -> tuple[Network, str]:
        parts = self._parts
        if self._given is not None:
            return self._given, "as given"
        if parts.here:  # each prediction takes the all-reduces that were measured on its own number of devices
            return ASSUMED, "as measured between the devices here"
        if parts.can_estimate_network:
            devices = parts.num_local_devices
            return parts.allreduce_benchmark(devices).network, f"as measured between {devices} devices here"
        return ASSUMED, "assumed: pass --bandwidth and --latency"

    def elsewhere(self, replicas: int, share: int, examples: int | None = None) -> Prediction:
        """Predicts a step on other machines, whose devices are `speed` times as fast as the local devices."""
        parts, observed = self._parts, self._observation
        compute = parts.compute_seconds(share) * parts.relative_cost(replicas) / self._speed
        return Prediction(
            replicas,
            share,
            compute_seconds=compute,
            fixed_seconds=compute * parts.fixed_share(share),
            exchange_seconds=sum(one.seconds(self.network) for one in parts.work(replicas).exchanges),
            dispatch_seconds=observed.dispatch_seconds,
            # The detected loop read the input of all replicas of this machine.
            input_seconds=observed.between_seconds * share / (parts.step.share * parts.step.replicas),
            examples=examples,
        )

    def here(
        self, replicas: int, share: int, network: Network | None = None, examples: int | None = None
    ) -> Prediction:
        """Predicts a step on this machine; the time grows in proportion to the number of replicas per device."""
        parts, observed = self._parts, self._observation
        devices = min(replicas, parts.num_local_devices)
        crowd = replicas / devices
        measured = parts.compute_benchmark(devices, share)
        compute = measured.compute_seconds * parts.relative_cost(replicas) * crowd
        read = replicas * share if examples is None else examples
        return Prediction(
            replicas,
            share,
            compute_seconds=compute,
            fixed_seconds=compute * parts.fixed_share(share),
            exchange_seconds=self._exchange_here(replicas, devices, network),
            dispatch_seconds=self._python_seconds + self._started(measured) * crowd,
            input_seconds=observed.between_seconds * read / (parts.step.replicas * parts.step.share),
            shared=True,
            examples=examples,
        )

    def _exchange_here(self, replicas: int, devices: int, network: Network | None) -> float:
        exchanges = self._parts.work(replicas).exchanges
        if network is not None:
            return sum(one.seconds(network) for one in exchanges)
        if devices == 1:
            return 0.0
        sums = self._parts.allreduce_benchmark(devices)
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
