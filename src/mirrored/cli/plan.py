"""The command `mirrored plan`: predicts a program's step time on more replicas, and names the bottleneck."""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import json
import math
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mirrored.cli.plan_failures import (
    FailureOptions,
    FailurePlan,
    failures_as_data,
    plan_failures,
    print_failures,
)
from mirrored.errors import ArgumentError
from mirrored.perf_model import Network, ScalingPlan, detect_step, make_plan
from mirrored.perf_model.bottleneck import bottleneck, breakdown, draw, explanation
from mirrored.perf_model.prediction import ASSUMED

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*"
_LONG_ENOUGH_SECONDS = 0.5
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def show_plan(
    program: Path,
    arguments: list[str],
    *,
    replicas: str,
    bandwidth: str | None,
    latency: str | None,
    keeps: str,
    speed: float,
    shared: bool,
    steps: int,
    plot: Path | None,
    as_json: bool,
    failures: FailureOptions | None = None,
) -> None:
    """Runs a program until its training step is timed, then prints the predicted times on more replicas.

    Args:
        program: The Python file to run.
        arguments: Its arguments.
        replicas: The numbers of replicas, separated by commas.
        bandwidth: The network's bandwidth; None for the default.
        latency: The network's latency; None for the default.
        keeps: The fixed quantity, ``replica-batch`` (weak scaling) or ``global-batch`` (strong scaling).
        speed: The speed of one replica's device relative to a device here.
        shared: Whether the replicas share this machine.
        steps: The minimum number of steps to time.
        plot: A file to plot the prediction into; None for no plot.
        as_json: Whether to print JSON.
        failures: The options about failures; None: predict no goodput.

    Raises:
        ArgumentError: A number cannot be parsed, or the program has no step.
        MissingExtraError: A plot is requested and matplotlib is not installed.
    """
    counts = _counts(replicas)
    network = _network(bandwidth, latency)
    if not 0 < speed < math.inf:
        raise _unreadable_error("--speed", str(speed), "a positive number", "--speed 1.5")
    aside = _stdout_on_stderr() if as_json else contextlib.nullcontext()
    with _Bar() as bar, aside:
        bar.show("run the program until its step has been timed", 0, None)
        observation = detect_step(
            lambda: _run(program, arguments), steps=steps, seconds=_LONG_ENOUGH_SECONDS, called="mirrored plan"
        )
        plan = make_plan(
            observation, counts, network=network, keeps=keeps, speed=speed, shared=shared, report=bar.show
        )  # fmt: skip
        goodput = None if failures is None else plan_failures(plan, observation, failures)
        # Kept until the end: a wrapper that the program has put around the stream closes it when it is collected.
        _programs_stream = sys.stdout
    if as_json:
        _print_last(json.dumps(as_data(plan, goodput), indent=1))
    else:
        _print(plan)
        if goodput is not None:
            print_failures(plan, goodput)
    if plot is not None:
        draw(plan, plot)
        print(f"plot: {plot}", file=sys.stderr if as_json else sys.stdout)


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """A context manager that redirects standard output, also of child processes and C libraries, to standard error.

    With --json standard output has nothing but the JSON.
    """
    kept = _point_stdout_to_stderr()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _print_last(text: str) -> None:
    """Prints a text on stdout; then redirects all later output to stderr, if `sys.stdout` is the original stream."""
    print(text, flush=True)
    if sys.stdout is sys.__stdout__:
        _point_stdout_to_stderr()


def _point_stdout_to_stderr() -> int | None:
    """Redirects file descriptor 1 to 2; returns a duplicate of the old descriptor 1, or None if either is closed."""
    with contextlib.suppress(OSError):
        kept = os.dup(1)
        os.dup2(2, 1)
        return kept
    return None


class _Bar:
    """A progress bar for measurements, shown on stderr if that is a terminal, and removed at the end."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("")

    def show(self, what: str, number: int, total: int | None) -> None:
        self._progress.update(self._task, description=what, completed=number, total=total)

    def __enter__(self) -> _Bar:
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def as_data(plan: ScalingPlan, failures: FailurePlan | None = None) -> list[dict[str, object]]:
    """Converts a scaling plan's predictions to JSON-serializable dicts, with the goodput if `failures` is given."""
    return [
        {
            "replicas": one.replicas,
            "examples_per_replica": one.share,
            "compute_seconds": one.compute_seconds,
            "fixed_seconds": one.fixed_seconds,
            "exchange_seconds": one.exchange_seconds,
            "dispatch_seconds": one.dispatch_seconds,
            "input_seconds": one.input_seconds,
            "step_seconds": one.step_seconds,
            "examples_per_second": one.examples_per_second,
            "efficiency": one.efficiency,
            "bottleneck": bottleneck(one),
            "breakdown": breakdown(one),
            **({} if failures is None else {"failures": failures_as_data(failures, at)}),
        }
        for at, one in enumerate(plan.predictions)
    ]


def _run(program: Path, arguments: list[str]) -> None:
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    path = os.path.join(os.getcwd(), program)  # `python train.py` makes `__file__` absolute, and not the arguments
    main_module = types.ModuleType("__main__")
    main_module.__file__, main_module.__loader__ = path, importlib.machinery.SourceFileLoader("__main__", path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    sys.modules["__main__"] = main_module
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main_module.__dict__)
    except SystemExit as ended:  # `sys.exit(main())` at the end of a program
        if ended.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


def _print(plan: ScalingPlan) -> None:
    console = Console()
    console = Console(width=max(console.width, 120))
    table = Table(title="Predicted time of a step (milliseconds)")
    for column in ("replicas", "each", "compute", "exchange", "dispatch", "input", "step", "examples/s", "efficiency"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for one in plan.predictions:
        parts = (one.compute_seconds, one.exchange_seconds, one.dispatch_seconds, one.input_seconds, one.step_seconds)
        table.add_row(str(one.replicas), str(one.share), *(_ms(seconds) for seconds in parts),
                      f"{one.examples_per_second:,.0f}", f"{one.efficiency:.0%}", bottleneck(one))  # fmt: skip
    console.print(table)
    sums, exchanges = plan.merged
    summary = f"{sums} all-reduces in the program, executed as {exchanges}; {_of_network(plan)}."
    console.print(summary, soft_wrap=True)
    if plan.steps_per_call > 1:
        console.print(f"A call runs {plan.steps_per_call} steps; all times are per step.", soft_wrap=True)
    check, observed = plan.check.device_seconds + plan.check.dispatch_seconds, plan.observed_seconds
    replicas = f"{plan.check.replicas} replica{'s' * (plan.check.replicas != 1)}"
    console.print(
        f"A step with {replicas} took {_ms(observed)} ms here; the prediction from its parts is {_ms(check)} ms, "
        f"{check / observed:.2f} times that.",
        soft_wrap=True,
    )
    console.print("Bottlenecks:")
    for one in plan.predictions:
        counted = f"{one.replicas} replica{'s' * (one.replicas != 1)}"
        console.print(f"  {counted}, {bottleneck(one)}: {explanation(plan, one)}", soft_wrap=True)


def _of_network(plan: ScalingPlan) -> str:
    if plan.network is None:
        return "all-reduces as measured between the devices here"
    rate = f"{plan.network.bandwidth_bytes_per_second / 1e9:.3g} GB/s, {1e6 * plan.network.latency_seconds:.3g} us"
    return f"network {rate} ({plan.network_source})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _network(bandwidth: str | None, latency: str | None) -> Network | None:
    """Returns the `Network` given by two option texts, with a default for a missing text; None if both are missing."""
    if bandwidth is None and latency is None:
        return None
    return Network(
        ASSUMED.bandwidth_bytes_per_second if bandwidth is None else _bandwidth(bandwidth),
        ASSUMED.latency_seconds if latency is None else _latency(latency),
    )


def _counts(text: str) -> list[int]:
    with contextlib.suppress(ValueError):
        counts = [int(part) for part in text.split(",")]
        if min(counts) >= 1:
            return counts
    raise _unreadable_error("--replicas", text, "numbers separated by commas, each at least 1", "--replicas 8,64,512")


def _bandwidth(text: str) -> float:
    # A lone `b` is a bit to some and a byte to others, and Gb/s is eight times less than GB/s.
    found = re.fullmatch(_NUMBER + r"([kKmMgGtT]?)(B|B/s|(?i:bit/s)|)", text.strip())
    number = _number(found)
    if found is None or number is None or number <= 0:
        raise _unreadable_error(
            "--bandwidth",
            text,
            "a number of bytes per second (B/s) or of bits per second (bit/s)",
            "--bandwidth 25GB/s, --bandwidth 100Gbit/s, 25e9",
        )
    return number * _SUFFIXES[found[2].lower()] / (8 if found[3].lower() == "bit/s" else 1)


def _latency(text: str) -> float:
    found = re.fullmatch(_NUMBER + r"(s|ms|us|ns|)", text.strip().lower())
    number = _number(found)
    if found is None or number is None:
        raise _unreadable_error("--latency", text, "a number of seconds", "--latency 5us, --latency 5e-6")
    return number * _TIMES[found[2]]


def _number(found: re.Match[str] | None) -> float | None:
    """Converts the first group of a regex match to a float; returns None if there is no match or no finite number."""
    with contextlib.suppress(ValueError):
        if found is not None and math.isfinite(float(found[1])):
            return float(found[1])
    return None


def _unreadable_error(option: str, text: str, rule: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        "mirrored plan",
        found=f"{option} {text!r} cannot be read",
        rule=f"{option} must be {rule}",
        remedy=f"write for example {remedy}",
    )
