"""Predicts goodput: the fraction of a job's time spent on training, without saves, recovery and repeated steps.

**Model.** Failures are independent, one in `M` seconds on average, at any moment. The job saves its state after every
`T` seconds of training, and a save delays training by `d` seconds. After a failure it needs `R` seconds until it trains
again, and then repeats the steps since the newest complete save. If a save is complete only `L` seconds after its step,
those are `L` seconds more. Then the goodput is that of Daly's model,

    T / (M * exp((R + L) / M) * (exp((T + d) / M) - 1)),

in which failures can also come while the job restarts or repeats steps. In an elastic job the others train on with
speed `s` for `J` seconds, until a replacement has joined, which multiplies it by

    1 - (1 - s) * (1 - exp(-J / M)).

**Interval.** Young's optimum is sqrt(2 * d * M). `best_interval` is Daly's, which is also good for rare saves.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9),
1974. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import tempfile
import time
from typing import Final

import numpy as np

from mirrored.elastic.pace import steps_between_snapshots
from mirrored.errors import ArgumentError
from mirrored.perf_model.step_detection import DetectedStep

DISK: Final = "restart from disk"
MEMORY: Final = "restart from memory"
ELASTIC: Final = "elastic recovery"
_SAMPLE_BYTES: Final = 1 << 26
_LARGEST_EXPONENT: Final = 700.0
# What an elastic recovery takes beyond the first step: to leave the epoch, to form the next one, the first collective.
_RECONFIGURATION_SECONDS: Final = 0.5


@dataclasses.dataclass(frozen=True)
class FailureCosts:
    """The costs of checkpoint saves and of failures, in seconds.

    Attributes:
        checkpoint_seconds: How long a checkpoint on disk delays training.
        write_seconds: How long it takes until the checkpoint is complete.
        snapshot_seconds: How long a snapshot in memory delays training.
        restart_seconds: From a failure to the first step of restarted processes.
        recovery_seconds: From a failure to the next step of an elastic job, in the surviving processes.
        join_seconds: From a failure until a replacement has joined. The others train more slowly meanwhile.
        pause_seconds: How long training pauses while a replacement joins.
    """

    checkpoint_seconds: float
    write_seconds: float
    snapshot_seconds: float
    restart_seconds: float
    recovery_seconds: float
    join_seconds: float
    pause_seconds: float


@dataclasses.dataclass(frozen=True)
class Goodput:
    """The predicted goodput of a job for one method of recovery from failures.

    Attributes:
        way: `DISK`, `MEMORY` or `ELASTIC`.
        interval_seconds: The time of training between two saves.
        interval_steps: The number of steps between two saves.
        lost_seconds: What a failure costs on average: the recovery, and the steps that are repeated.
        goodput: The fraction of the time that goes into steps that are not repeated, at full speed.
    """

    way: str
    interval_seconds: float
    interval_steps: int
    lost_seconds: float
    goodput: float


def best_interval(save_seconds: float, failure_seconds: float) -> float:
    """Returns the optimal training time between two checkpoint saves, by Daly's formula.

    Args:
        save_seconds: How long a save delays training.
        failure_seconds: The mean time between two failures.

    Example:
        >>> round(best_interval(30.0, 4 * 3600.0))
        910
    """
    if save_seconds >= 2 * failure_seconds:
        return failure_seconds
    ratio = math.sqrt(save_seconds / (2 * failure_seconds))
    return math.sqrt(2 * save_seconds * failure_seconds) * (1 + ratio / 3 + ratio * ratio / 9) - save_seconds


def goodput_of(interval_seconds: float, save_seconds: float, recovery_seconds: float, failure_seconds: float) -> float:
    """Returns the goodput of a job that saves regularly and recovers from failures, by Daly's model.

    Args:
        interval_seconds: The time of training between two saves.
        save_seconds: How long a save delays training.
        recovery_seconds: From a failure to the first step, and how long a save takes until it is complete.
        failure_seconds: The mean time between two failures.

    Returns:
        The fraction of the time that goes into steps that are not repeated.

    Example:
        >>> round(goodput_of(910.0, 30.0, 120.0, 4 * 3600.0), 3)
        0.929
    """
    exponent = (interval_seconds + save_seconds) / failure_seconds
    if max(exponent, recovery_seconds / failure_seconds) > _LARGEST_EXPONENT:
        return 0.0
    return interval_seconds / (failure_seconds * math.exp(recovery_seconds / failure_seconds) * math.expm1(exponent))


def predict_goodput(
    step_seconds: float,
    failure_seconds: float,
    costs: FailureCosts,
    *,
    fewer_speed: float = 0.5,
    checkpoint_every_seconds: float | None = None,
    snapshot_every_steps: int | None = None,
) -> tuple[Goodput, Goodput, Goodput]:
    """Predicts the goodput for restart from disk, restart from memory, and elastic recovery.

    Args:
        step_seconds: The time of a training step.
        failure_seconds: The mean time between two failures of the job.
        costs: What saves and failures cost.
        fewer_speed: The speed of an elastic job without the lost worker, relative to that with all.
        checkpoint_every_seconds: The time of training between two checkpoints on disk. Default: `best_interval`, but
            not less than a checkpoint needs to be written.
        snapshot_every_steps: The number of steps between two snapshots. Default: as elastic jobs choose it.

    Returns:
        The predictions, in this order.

    Raises:
        ArgumentError: A time or `snapshot_every_steps` is not positive, or `fewer_speed` is not from 0 to 1.
    """
    positive = {"step_seconds": step_seconds, "failure_seconds": failure_seconds}
    optional = {"checkpoint_every_seconds": checkpoint_every_seconds, "snapshot_every_steps": snapshot_every_steps}
    positive |= {name: value for name, value in optional.items() if value is not None}
    if not (all(value > 0 for value in positive.values()) and 0 <= fewer_speed <= 1):
        raise ArgumentError(
            "predict_goodput",
            found=", ".join(f"{name}={value}" for name, value in {**positive, "fewer_speed": fewer_speed}.items()),
            rule="the times and numbers of steps must be positive, and fewer_speed from 0 to 1",
            remedy="pass, for example, step_seconds=0.1, failure_seconds=4 * 3600, fewer_speed=0.5",
        )
    on_disk = checkpoint_every_seconds
    if on_disk is None:
        on_disk = max(best_interval(costs.checkpoint_seconds, failure_seconds), costs.write_seconds)
    every = snapshot_every_steps or steps_between_snapshots(costs.snapshot_seconds, step_seconds)
    in_memory = every * step_seconds

    def predict(way: str, interval: float, save: float, recovery: float, latency: float = 0.0) -> Goodput:
        steps = max(1, round(interval / step_seconds))
        interval = steps * step_seconds
        found = goodput_of(interval, save, recovery + latency, failure_seconds)
        return Goodput(way, interval, steps, recovery + latency + interval / 2, found)

    disk = predict(DISK, on_disk, costs.checkpoint_seconds, costs.restart_seconds, costs.write_seconds)
    memory = predict(MEMORY, in_memory, costs.snapshot_seconds, costs.restart_seconds)
    elastic = predict(ELASTIC, in_memory, costs.snapshot_seconds, costs.recovery_seconds + costs.pause_seconds)
    slower = (1 - fewer_speed) * -math.expm1(-costs.join_seconds / failure_seconds)
    return disk, memory, dataclasses.replace(elastic, goodput=elastic.goodput * (1 - slower))


def measure_failure_costs(observation: DetectedStep, state_bytes: int) -> FailureCosts:
    """Measures how many seconds a program's checkpoint saves and failures cost on this machine.

    A restart starts Python, imports the program's packages, and repeats what the program has done here before the end
    of its first step. An elastic recovery repeats only the latter. Both include compilation, although programs come
    from a cache after a restart: these times are upper limits. The measurement takes a few seconds.

    Args:
        observation: The program's step, from `detect_step`.
        state_bytes: The size of its variables.
    """
    sample = np.zeros(max(1, min(state_bytes, _SAMPLE_BYTES)), np.uint8)
    scale = state_bytes / sample.nbytes
    copy = scale * _seconds_of_copy(sample)
    start = _seconds_of_start()
    first = observation.first_step_seconds
    recovery = _RECONFIGURATION_SECONDS + first
    return FailureCosts(
        checkpoint_seconds=copy,
        write_seconds=scale * _seconds_of_write(sample),
        snapshot_seconds=2 * copy,
        restart_seconds=start + first,
        recovery_seconds=recovery,
        join_seconds=recovery + start,
        pause_seconds=recovery,
    )


def _seconds_of_copy(sample: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        sample.copy()
        times.append(time.perf_counter() - began)
    return min(times)


def _seconds_of_write(sample: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    with tempfile.TemporaryFile(dir=os.getcwd() if os.access(os.getcwd(), os.W_OK) else None) as file:
        began = time.perf_counter()
        file.write(sample.data)
        file.flush()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def _seconds_of_start() -> float:
    """Returns how long a process needs to start and to import JAX and mirrored."""
    began = time.perf_counter()
    command = [sys.executable, "-c", "import mirrored; mirrored.MirroredStrategy; import jax; jax.devices()"]
    subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True, capture_output=True)
    return time.perf_counter() - began
