"""Measures the parts of a training step (compute, all-reduces), from which the step time is predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from mirrored.perf_model.allreduce_benchmark import AllReduceBenchmark, benchmark_allreduce
from mirrored.perf_model.compute_benchmark import ComputeBenchmark, benchmark_compute
from mirrored.perf_model.exchange import Exchange, Network
from mirrored.perf_model.step_cost import StepCost, TracedStep
from mirrored.perf_model.timing import Machine, measure_machine

_MOST_BATCH_SIZES = 4
_NOTHING = Exchange("psum", 1, 0)
ReportProgress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Instruments:
    """The functions that measure compute time, all-reduce time and machine speed; tests replace these functions.

    Attributes:
        benchmark_compute: Measures one replica's program on several devices at once.
        benchmark_allreduce: Measures all-reduces of a given size over several devices.
        measure_machine: Measures the rates of one device.
    """

    benchmark_compute: Callable[[TracedStep, int, int], ComputeBenchmark] = benchmark_compute
    benchmark_allreduce: Callable[..., AllReduceBenchmark] = benchmark_allreduce
    measure_machine: Callable[[], Machine] = measure_machine


class Parts:
    """The measured times of a training step's compute and all-reduces, and the counts of its operations and bytes.

    Args:
        step: The detected step.
        wanted: The numbers of replicas to predict, each with its per-replica batch size.
        here: Whether the replicas share this machine.
        network: The user's description of the network; None to measure all-reduces.
        instruments: The microbenchmarks.
        report: Called before each measurement with its description, its index and the number of measurements.
    """

    def __init__(
        self,
        step: TracedStep,
        wanted: Sequence[tuple[int, int]],
        *,
        here: bool,
        network: Network | None,
        instruments: Instruments,
        report: ReportProgress,
    ) -> None:
        self.step = step
        self.here = here
        self._instruments = instruments
        self._compute_benchmarks: dict[tuple[int, int], ComputeBenchmark] = {}
        self._allreduce_benchmarks: dict[int, AllReduceBenchmark] = {}
        self._costs: dict[int, StepCost] = {}
        self._measure(wanted, here, network, report)

    @property
    def num_local_devices(self) -> int:
        """The number of this process's devices on the platform (CPU, GPU or TPU) of the training step."""
        return len(self.step.devices)

    @property
    def can_estimate_network(self) -> bool:
        """Whether the network can be estimated from local all-reduces: True for two or more local accelerators."""
        return self.num_local_devices > 1 and self.step.devices[0].platform != "cpu"

    def compute_benchmark(self, devices: int, share: int) -> ComputeBenchmark:
        """Returns the measured time of one replica's part of a step when `devices` devices run it simultaneously."""
        return self._compute_benchmarks[devices, share]

    def allreduce_benchmark(self, devices: int) -> AllReduceBenchmark:
        """Returns the measured times of all-reduces over a given number of this process's devices."""
        return self._allreduce_benchmarks[devices]

    def compute_seconds(self, share: int) -> float:
        """Returns the compute time of one replica alone, interpolated between measured per-replica batch sizes.

        It is interpolated linearly between the two nearest measured batch sizes.
        """
        shares, seconds = self._alone()
        return float(np.interp(float(share), shares, seconds))

    def fixed_share(self, share: int) -> float:
        """Returns which fraction (0 to 1) of the compute time does not depend on the batch size.

        It extrapolates to an empty batch from the two nearest measured batch sizes. Distant sizes would mislead,
        because a matrix product of a single example can use another routine than one of several examples (on CPUs it
        takes a quarter of the time of two).
        """
        shares, seconds = self._alone()
        high = min(max(1, int(np.searchsorted(shares, share))), len(shares) - 1)
        low = high - 1
        slope = max(0.0, (seconds[high] - seconds[low]) / (shares[high] - shares[low]))
        empty = max(0.0, seconds[low] - slope * shares[low])
        return empty / max(empty + slope * share, 1e-12)

    def _alone(self) -> tuple[list[int], list[float]]:
        """Returns the batch sizes that were measured on one device, in ascending order, and the time of each."""
        found = sorted(
            (share, one.compute_seconds) for (devices, share), one in self._compute_benchmarks.items() if devices == 1
        )
        return [share for share, _ in found], [seconds for _, seconds in found]

    def work(self, replicas: int) -> StepCost:
        """Returns the operations, bytes and collectives of one replica in a training step with `replicas` replicas.

        The per-replica batch size is that of the detected step.
        """
        if replicas not in self._costs:
            self._costs[replicas] = self.step.work(replicas, self.step.share)
        return self._costs[replicas]

    def relative_cost(self, replicas: int) -> float:
        """Returns the compute cost per replica with `replicas` replicas, relative to the cost with one replica.

        It is less than 1 if the update is sharded.

        The bytes that an exchange itself reads and writes are part of the exchange's time.
        """
        alone, one = self.work(1), self.work(replicas)
        moved = one.moved_bytes - sum(exchange.counted_bytes for exchange in one.exchanges)
        return self.machine.seconds(one.flops, moved) / max(self.machine.seconds(alone.flops, alone.moved_bytes), 1e-12)

    def _measure(
        self, wanted: Sequence[tuple[int, int]], here: bool, network: Network | None, report: ReportProgress
    ) -> None:
        compute_cases = self._compute_cases(wanted, here)
        allreduce_cases = self._allreduce_cases(wanted if network is None else (), here)
        total = 1 + len(compute_cases) + len(allreduce_cases)
        report("compute rate and memory bandwidth of a device", 0, total)
        self.machine = self._instruments.measure_machine()
        for number, (devices, share) in enumerate(compute_cases, 1):
            at_once = "" if devices == 1 else f", {devices} at once"
            report(f"a replica's program with {share} examples{at_once}", number, total)
            self._compute_benchmarks[devices, share] = self._instruments.benchmark_compute(self.step, share, devices)
        for number, devices in enumerate(allreduce_cases, 1 + len(compute_cases)):
            report(f"all-reduces over {devices} devices", number, total)
            largest = max(self.work(devices).exchanges, key=lambda one: one.payload_bytes, default=_NOTHING)
            self._allreduce_benchmarks[devices] = self._instruments.benchmark_allreduce(
                self.step.devices[:devices], largest.payload_bytes, largest.merged
            )

    def _compute_cases(self, wanted: Sequence[tuple[int, int]], here: bool) -> list[tuple[int, int]]:
        """Returns the (devices, batch size) pairs to benchmark: the requested ones, and two sizes on one device.

        The two sizes separate the fixed cost from the cost per example.
        """
        own = self.step.share
        observed = (min(self.step.replicas, self.num_local_devices), own)
        # A quarter: half the size would double the effect of measurement noise. At least 2 where possible, because a
        # single example can use another routine (see `fixed_share`).
        other = max(own // 4, min(2, own // 2)) or 2
        pairs = {(1, own), (1, other), (1, min(share for _, share in wanted)), observed}
        if here:
            pairs |= {(min(replicas, self.num_local_devices), share) for replicas, share in wanted}
        else:
            shares = sorted({share for _, share in wanted})
            steps = np.linspace(0, len(shares) - 1, min(len(shares), _MOST_BATCH_SIZES))
            pairs |= {(1, shares[round(place)]) for place in steps}
        return sorted(pairs)

    def _allreduce_cases(self, wanted: Sequence[tuple[int, int]], here: bool) -> list[int]:
        """Returns the numbers of devices over which all-reduces are benchmarked."""
        found = [min(self.step.replicas, self.num_local_devices)]
        if wanted and here:
            found += [min(replicas, self.num_local_devices) for replicas, _ in wanted]
        elif wanted and self.can_estimate_network:
            found.append(self.num_local_devices)
        return sorted({one for one in found if one > 1})
