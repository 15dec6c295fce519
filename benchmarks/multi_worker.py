"""Steps per second over 1, 2 and 4 processes on this machine: mirrored, hand-written JAX and PyTorch DDP (Gloo).

    python benchmarks/multi_worker.py [--workers 1,2,4] [--workloads W1,W2] [--rounds 8] [--write benchmarks/reports]

mirrored and JAX alternate in the same processes; PyTorch follows in separate processes (`make bench-peers` installs
it), so its figures are not from the same rounds. Hand-written JAX sums all gradients in one `psum`, the usual way to
write it; across processes each of its buffers is a separate message.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

from processes import ContenderError, Process, interpreter
from spec import WORKLOADS

HERE = Path(__file__).parent
CONTENDERS = ("mirrored", "mirrored deterministic", "hand-written JAX", "PyTorch DDP")


def of_jax(workers: int, workload: str, rounds: int) -> dict[str, list[float]]:
    """Returns seconds per step of the JAX contenders, one figure per round."""
    program = str(HERE / "multi_worker_program.py")
    command = [sys.executable, "-m", "mirrored.cli", "run", "--workers", str(workers), program]
    source = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": source, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    done = subprocess.run(
        [*command, workload, str(rounds)], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    found = re.search(r"RESULT (.*)", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{workload} on {workers} workers: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    seconds: dict[str, list[float]] = json.loads(found[1])
    return seconds


def of_torch(workers: int, workload: str, rounds: int) -> list[float]:
    """Returns seconds per step of DDP, one figure per round."""
    with Process("torch_ddp", workers) as process:
        process.make("train", workload)
        process.ask("measure", name="torch_ddp", calls=3)
        once = process.ask("measure", name="torch_ddp", calls=5)["seconds"]
        calls = max(5, min(500, round(0.25 / once)))
        return [process.ask("measure", name="torch_ddp", calls=calls)["seconds"] for _ in range(rounds)]


def row(workers: int, workload: str, rounds: int) -> dict[str, list[float]]:
    """Returns all contenders' seconds per step; omits a contender that cannot run, with a message."""
    seconds = of_jax(workers, workload, rounds)
    if interpreter("torch_ddp") is None:
        print("PyTorch is not installed (make bench-peers): its column stays empty", file=sys.stderr)
        return seconds
    try:
        seconds["PyTorch DDP"] = of_torch(workers, workload, rounds)
    except ContenderError as error:
        print(f"PyTorch is skipped: {error}", file=sys.stderr)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Formats the median of the rounds' ratios with their interquartile range."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    quarter = len(ratios) // 4
    return f"{statistics.median(ratios):.2f} ({ratios[quarter]:.2f}-{ratios[-1 - quarter]:.2f})"


def line(workers: int, workload: str, seconds: dict[str, list[float]]) -> str:
    """Formats one line of the table."""
    rates = [f"{1 / statistics.median(seconds[name]):.1f}" if name in seconds else "-" for name in CONTENDERS]
    ours = ratio(seconds["mirrored"], seconds["hand-written JAX"])
    exact = ratio(seconds["mirrored deterministic"], seconds["mirrored"])
    return f"| {workload} {WORKLOADS[workload].title} | {workers} | {' | '.join(rates)} | {ours} | {exact} |"


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--workloads", default="W1,W2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", type=Path, help="folder for the report")
    options = parser.parse_args()
    lines = [
        f"# Steps per second over several processes: {os.cpu_count()} cores, {platform.machine()}",
        "",
        "Medians of interleaved rounds. The last two columns are medians of the rounds' ratios of step times, with the "
        "interquartile range.",
        "",
        f"| workload | workers | {' | '.join(CONTENDERS)} | mirrored / JAX | deterministic / plain |",
        "|---" * (len(CONTENDERS) + 4) + "|",
    ]
    print("\n".join(lines), flush=True)
    for workload in options.workloads.split(","):
        for workers in map(int, options.workers.split(",")):
            lines.append(line(workers, workload, row(workers, workload, options.rounds)))
            print(lines[-1], flush=True)
    if options.write is not None:
        options.write.mkdir(parents=True, exist_ok=True)
        name = f"{datetime.date.today():%Y-%m-%d}_cluster_{os.cpu_count()}_cores.md"
        (options.write / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
