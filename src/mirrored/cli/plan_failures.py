"""The part of `mirrored plan` about failures: predicts goodput for three ways to recover (``--failure-every``)."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from rich.console import Console
from rich.table import Table

from mirrored.errors import ArgumentError
from mirrored.perf_model import (
    DetectedStep,
    FailureCosts,
    Goodput,
    Prediction,
    ScalingPlan,
    measure_failure_costs,
    predict_goodput,
)

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclasses.dataclass(frozen=True)
class FailureOptions:
    """The failure options of `mirrored plan`, in seconds; None for each option that was not given.

    Attributes:
        failure_every: The mean time between two failures.
        checkpoint_every: The time of training between two checkpoints on disk.
        checkpoint_time: How long a checkpoint delays training.
        restart_time: From a failure to the first step of restarted processes.
        recovery_time: From a failure to the next step of an elastic job.
    """

    failure_every: float
    checkpoint_every: float | None = None
    checkpoint_time: float | None = None
    restart_time: float | None = None
    recovery_time: float | None = None


def failure_options(**texts: str | None) -> FailureOptions | None:
    """Parses the texts of command line options into a `FailureOptions`; returns None if all texts are None.

    Raises:
        ArgumentError: An option cannot be read, or one is given without ``--failure-every``.
    """
    read = {name: None if text is None else _duration(name, text) for name, text in texts.items()}
    every = read.pop("failure_every", None)
    if every is not None:
        return FailureOptions(every, **read)
    given = [name for name, value in read.items() if value is not None]
    if given:
        raise ArgumentError(
            "mirrored plan",
            found=f"{_option(given[0])} was given without --failure-every",
            rule="goodput depends on how often the job fails",
            remedy="pass, for example, --failure-every 4h",
        )
    return None


def _duration(name: str, text: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ms|s|min|m|h|d)", text.strip().lower())
    try:
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ArgumentError(
            "mirrored plan",
            found=f"{_option(name)} {text!r} cannot be read",
            rule=f"{_option(name)} must be a time, more than 0, with its unit: ms, s, m (minutes), h or d",
            remedy=f"write for example {_option(name)} 4h",
        )
    return seconds


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclasses.dataclass(frozen=True)
class FailurePlan:
    """The predicted goodput for each number of replicas, and the durations from which it was computed.

    Attributes:
        options: The options.
        costs: What saves and failures cost, measured or given.
        predictions: For each prediction of the step: the goodput of the three ways to recover.
    """

    options: FailureOptions
    costs: FailureCosts
    predictions: tuple[tuple[Goodput, ...], ...]


def plan_failures(plan: ScalingPlan, observation: DetectedStep, options: FailureOptions) -> FailurePlan:
    """Predicts the goodput for each number of replicas in a scaling plan.

    Costs that `options` does not contain are measured.
    """
    costs = _with_given(measure_failure_costs(observation, plan.state_bytes), options)
    return FailurePlan(options, costs, tuple(_predict(one, options, costs) for one in plan.predictions))


def _with_given(costs: FailureCosts, options: FailureOptions) -> FailureCosts:
    changes: dict[str, float] = {}
    if options.checkpoint_time is not None:
        changes |= {"checkpoint_seconds": options.checkpoint_time}
    if options.recovery_time is not None:
        changes |= {"recovery_seconds": options.recovery_time, "pause_seconds": options.recovery_time}
    if options.restart_time is not None:
        changes |= {"restart_seconds": options.restart_time, "join_seconds": options.restart_time}
    return dataclasses.replace(costs, **changes)


def _predict(one: Prediction, options: FailureOptions, costs: FailureCosts) -> tuple[Goodput, ...]:
    # One replica per device: without a worker, a device has twice as many replicas; a single worker has to wait.
    speed = 0.5 if one.replicas > 1 else 0.0
    return predict_goodput(
        one.step_seconds,
        options.failure_every,
        costs,
        fewer_speed=speed,
        checkpoint_every_seconds=options.checkpoint_every,
    )


def failures_as_data(plan: FailurePlan, at: int) -> dict[str, Any]:
    """Returns the predicted goodput for one number of replicas as JSON-serializable data.

    `at` is the index of the number of replicas in `plan.predictions`.
    """
    return {
        "failure_every_seconds": plan.options.failure_every,
        "costs": dataclasses.asdict(plan.costs),
        "ways": [dataclasses.asdict(one) for one in plan.predictions[at]],
    }


def print_failures(plan: ScalingPlan, failures: FailurePlan) -> None:
    """Prints the predicted goodput as a table, and the durations from which it was computed."""
    console = Console()
    console = Console(width=max(console.width, 120))
    table = Table(title=f"Predicted goodput with a failure every {_time(failures.options.failure_every)}")
    for column in ("replicas", "recovery", "saves every", "steps", "lost per failure", "goodput"):
        table.add_column(column, justify="left" if column == "recovery" else "right", no_wrap=True)
    for one, ways in zip(plan.predictions, failures.predictions, strict=True):
        for way in ways:
            table.add_row(str(one.replicas), way.way, _time(way.interval_seconds), str(way.interval_steps),
                          _time(way.lost_seconds), f"{way.goodput:.2%}")  # fmt: skip
    console.print(table)
    costs, given = failures.costs, failures.options
    named = (
        ("a restart", costs.restart_seconds, given.restart_time),
        ("an elastic recovery", costs.recovery_seconds, given.recovery_time),
        ("a checkpoint", costs.checkpoint_seconds, given.checkpoint_time),
        ("writing it", costs.write_seconds, None),
        ("a snapshot", costs.snapshot_seconds, None),
    )
    words = [f"{name} {_time(value)}{'' if own is None else ' (given)'}" for name, value, own in named]
    console.print(f"Times, measured here unless given: {', '.join(words)}.", soft_wrap=True)


def _time(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size * (2 if unit in ("d", "min") else 1):
            return f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"
