"""What of a step is measured on this machine before anything is predicted: its parts, never the step itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from mirrored.perf_model.allreduce_benchmark import AllReduceBenchmark, benchmark_allreduce
from mirrored.perf_model.compute_benchmark import ComputeBenchmark, benchmark_compute
from mirrored.perf_model.exchange import Exchange, Network
from mirrored.perf_model.machine import Machine, measure_machine
from mirrored.perf_model.step_cost import StepCost, TracedStep

_MOST_SHARES = 4
_NOTHING = Exchange("psum", 1, 0)
Told = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Instruments:
    """How parts are measured; tests put known ones in their place.

    Attributes:
        rehearse: One replica's program, on several devices at once.
        measure_sums: Sums over several devices, of so many bytes.
        measure_machine: The rates of one device.
    """

    benchmark_compute: Callable[[TracedStep, int, int], ComputeBenchmark] = benchmark_compute
    benchmark_allreduce: Callable[..., AllReduceBenchmark] = benchmark_allreduce
    measure_machine: Callable[[], Machine] = measure_machine


class Parts:
    """What was measured of a step, and what was read off it.

    Args:
        step: The observed step.
        wanted: Numbers of replicas to be predicted, and each one's share.
        here: Whether they share this machine.
        network: What the user knows of the network; None if sums are to be measured.
        instruments: How to measure.
        told: Called before each measurement with what it is, its number and how many there are.
    """

    def __init__(
        self,
        step: TracedStep,
        wanted: Sequence[tuple[int, int]],
        *,
        here: bool,
        network: Network | None,
        instruments: Instruments,
        told: Told,
    ) -> None:
        self.step = step
        self._instruments = instruments
        self._rehearsals: dict[tuple[int, int], ComputeBenchmark] = {}
        self._sums: dict[int, AllReduceBenchmark] = {}
        self._works: dict[int, StepCost] = {}
        self._measure(wanted, here, network, told)

    @property
    def local(self) -> int:
        """How many devices of the step's kind there are here."""
        return len(self.step.devices)

    @property
    def is_network(self) -> bool:
        """Whether what lies between the devices here is a network, as others would have it: not a CPU's memory."""
        return self.local > 1 and self.step.devices[0].platform != "cpu"

    def rehearsal(self, devices: int, share: int) -> ComputeBenchmark:
        """One replica's program on so many devices at once."""
        return self._rehearsals[devices, share]

    def sums(self, devices: int) -> AllReduceBenchmark:
        """Sums over so many devices of this machine."""
        return self._sums[devices]

    def compute_seconds(self, share: int) -> float:
        """What one replica's program takes on a device that has this machine to itself.

        On the line between the two nearest shares that were measured.
        """
        shares, seconds = self._alone()
        return float(np.interp(float(share), shares, seconds))

    def fixed_share(self, share: int) -> float:
        """Which part of that does not depend on the batch: 0 to 1.

        What an empty share would take on the line between the two nearest shares that were measured. Not on a line
        from afar: a single example may be multiplied by another routine than several (on CPUs in a quarter of the
        time of two).
        """
        shares, seconds = self._alone()
        high = min(max(1, int(np.searchsorted(shares, share))), len(shares) - 1)
        low = high - 1
        slope = max(0.0, (seconds[high] - seconds[low]) / (shares[high] - shares[low]))
        empty = max(0.0, seconds[low] - slope * shares[low])
        return empty / max(empty + slope * share, 1e-12)

    def _alone(self) -> tuple[list[int], list[float]]:
        """The shares that were measured on one device, ascending, and what each takes."""
        found = sorted(
            (share, one.compute_seconds) for (devices, share), one in self._rehearsals.items() if devices == 1
        )
        return [share for share, _ in found], [seconds for _, seconds in found]

    def work(self, replicas: int) -> StepCost:
        """The work of one of so many replicas, each with the observed share; traced once."""
        if replicas not in self._works:
            self._works[replicas] = self.step.work(replicas, self.step.share)
        return self._works[replicas]

    def more(self, replicas: int) -> float:
        """What each of so many replicas has to compute, in the work of a single one: a share of the update, say.

        What an exchange itself reads and writes is part of the exchange's time.
        """
        alone, one = self.work(1), self.work(replicas)
        moved = one.moved_bytes - sum(exchange.counted_bytes for exchange in one.exchanges)
        return self.machine.seconds(one.flops, moved) / max(self.machine.seconds(alone.flops, alone.moved_bytes), 1e-12)

    def _measure(self, wanted: Sequence[tuple[int, int]], here: bool, network: Network | None, told: Told) -> None:
        rehearsed = self._to_rehearse(wanted, here)
        summed = self._to_sum(wanted if network is None else (), here)
        total = 1 + len(rehearsed) + len(summed)
        told("how fast a device computes and moves memory", 0, total)
        self.machine = self._instruments.measure_machine()
        for number, (devices, share) in enumerate(rehearsed, 1):
            at_once = "" if devices == 1 else f", {devices} at once"
            told(f"a replica's program with {share} examples{at_once}", number, total)
            self._rehearsals[devices, share] = self._instruments.benchmark_compute(self.step, share, devices)
        for number, devices in enumerate(summed, 1 + len(rehearsed)):
            told(f"sums over {devices} devices", number, total)
            largest = max(self.work(devices).exchanges, key=lambda one: one.payload_bytes, default=_NOTHING)
            self._sums[devices] = self._instruments.benchmark_allreduce(
                self.step.devices[:devices], largest.payload_bytes, largest.merged
            )

    def _to_rehearse(self, wanted: Sequence[tuple[int, int]], here: bool) -> list[tuple[int, int]]:
        """Numbers of devices and shares: what is asked for, and two shares on one device, for what is fixed."""
        own = self.step.share
        observed = (min(self.step.replicas, self.local), own)
        # A quarter: a half would double what the two measurements differ by accident. Not one, where it can be helped.
        other = max(own // 4, min(2, own // 2)) or 2
        pairs = {(1, own), (1, other), (1, min(share for _, share in wanted)), observed}
        if here:
            pairs |= {(min(replicas, self.local), share) for replicas, share in wanted}
        else:
            shares = sorted({share for _, share in wanted})
            steps = np.linspace(0, len(shares) - 1, min(len(shares), _MOST_SHARES))
            pairs |= {(1, shares[round(place)]) for place in steps}
        return sorted(pairs)

    def _to_sum(self, wanted: Sequence[tuple[int, int]], here: bool) -> list[int]:
        """Numbers of devices that sums are measured over: what is asked for, and where the step was observed."""
        found = [min(self.step.replicas, self.local)]
        if wanted and here:
            found += [min(replicas, self.local) for replicas, _ in wanted]
        elif wanted and self.is_network:
            found.append(self.local)
        return sorted({one for one in found if one > 1})
