"""`mirrored plan`: how fast a program's step would be on more replicas, and why not faster."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from mirrored.errors import ArgumentError
from mirrored.planning import Network, Plan, make_plan, measure_machine, measure_network, observe
from mirrored.planning.bottleneck import bottleneck, explanation
from mirrored.planning.picture import draw

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def show_plan(
    program: Path,
    arguments: list[str],
    *,
    replicas: str,
    bandwidth: str,
    latency: str,
    keeps: str,
    speed: float,
    shared: bool,
    steps: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Runs the program until its step has been timed, and prints the plan.

    Raises:
        ArgumentError: Numbers that cannot be read, or a program without a step.
        MissingExtraError: A plot was asked for and matplotlib is not installed.
    """
    counts = _counts(replicas)
    network = Network(_bandwidth(bandwidth), _latency(latency))
    observation = observe(lambda: _run(program, arguments), steps=steps, called="mirrored plan")
    devices = jax.local_devices()
    between = measure_network(devices) if len(devices) > 1 else None
    plan = make_plan(
        observation,
        counts,
        network=between if shared and between is not None else network,
        machine=measure_machine(),
        observed_network=between,
        keeps=keeps,
        speed=speed,
        shared=shared,
    )
    if as_json:
        print(json.dumps(as_data(plan), indent=1))
    else:
        _print(plan)
    if plot is not None:
        draw(plan, plot)
        print(f"plot: {plot}", file=sys.stderr if as_json else sys.stdout)


def as_data(plan: Plan) -> list[dict[str, object]]:
    """The plan as plain data."""
    return [
        {
            "replicas": one.replicas,
            "examples_per_replica": one.share,
            "compute_seconds": one.compute_seconds,
            "exchange_seconds": one.exchange_seconds,
            "host_seconds": one.host_seconds,
            "step_seconds": one.step_seconds,
            "examples_per_second": one.examples_per_second,
            "efficiency": one.efficiency,
            "bottleneck": bottleneck(one),
        }
        for one in plan.predictions
    ]


def _run(program: Path, arguments: list[str]) -> None:
    before = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _print(plan: Plan) -> None:
    console = Console()
    console = Console(width=max(console.width, 120))
    table = Table(title="A step, predicted (milliseconds)")
    for column in ("replicas", "each", "compute", "exchange", "host", "step", "examples/s", "efficiency"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for one in plan.predictions:
        figures = (one.compute_seconds, one.exchange_seconds, one.host_seconds, one.step_seconds)
        rate = f"{one.examples_per_second:,.0f}"
        table.add_row(str(one.replicas), str(one.share), *(f"{1e3 * seconds:.3g}" for seconds in figures), rate,
                      f"{one.efficiency:.0%}", bottleneck(one))  # fmt: skip
    console.print(table)
    sums, exchanges = plan.merged
    rate = f"{plan.network.bandwidth_bytes_per_second / 1e9:.3g} GB/s, {1e6 * plan.network.latency_seconds:.3g} us"
    console.print(f"{sums} sums over replicas in the program, exchanged as {exchanges}; network {rate}.")
    console.print("Why not faster?")
    for one in plan.predictions:
        console.print(f"  {one.replicas} replicas, {bottleneck(one)}: {explanation(plan, one)}", soft_wrap=True)


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise _unreadable("--replicas", text, "numbers with commas between", "--replicas 8,64,512") from None


def _bandwidth(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?)(b|b/s|bit/s)?", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise _unreadable("--bandwidth", text, "bytes per second", "--bandwidth 25GB/s, --bandwidth 100Gbit/s, 25e9")
    return float(found[1]) * _SUFFIXES[found[2]] / (8 if found[3] == "bit/s" else 1)


def _latency(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(s|ms|us|ns|)", text.strip().lower())
    if found is None:
        raise _unreadable("--latency", text, "seconds", "--latency 5us, --latency 5e-6")
    return float(found[1]) * _TIMES[found[2]]


def _unreadable(option: str, text: str, rule: str, remedy: str) -> ArgumentError:
    return ArgumentError("mirrored plan", found=f"{option} {text}", rule=f"{option} is {rule}", remedy=remedy)
