"""Compares the goodput that `mirrored plan --failure-every` predicts with that of jobs whose workers are killed.

    python tools/goodput.py [--failures 10] [--failure-every 12] [--ways disk,memory,elastic]

For each way to recover, a first run with single failures measures what the prediction needs: the time of a step, the
recovery, and the join of a replacement. In a second run, workers are killed at random moments, also while the job
recovers: the times between two kills are the quantiles of an exponential distribution, shuffled. Its goodput is the
number of its steps times the time of an undisturbed step, divided by its duration. The exit status is 1 if a prediction
differs from it by more than 15 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mirrored.perf_model import FailureCosts, predict_goodput

ROOT = Path(__file__).parent.parent
PROGRAM = Path(__file__).with_name("chaos_elastic_program.py")
WAYS = {
    "disk": (["--max-restarts", "100000"], {}),
    "memory": (["--elastic"], {"MIRRORED_ELASTIC_RECOVERY": "restart"}),
    "elastic": (["--elastic"], {"MIRRORED_ELASTIC_RECOVERY": "auto"}),
}
SAVE_EVERY, SNAPSHOT_EVERY = 50, 10
TOLERANCE = 0.15
_UNDISTURBED_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Step:
    """A line of a worker about a finished step; `part` counts the recoveries before it."""

    slot: int
    step: int
    part: int
    at: float


class Run:
    """A run of the program of `tools/chaos.py --elastic` with one way to recover."""

    def __init__(self, folder: Path, way: str, workers: int, seconds_per_step: float) -> None:
        folder.mkdir(parents=True)
        options, variables = WAYS[way]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "CHAOS_SNAPSHOT_EVERY": str(SNAPSHOT_EVERY),
            **variables,
        }
        command = [sys.executable, "-m", "mirrored.cli", "run", *options, "--workers", str(workers)]
        self.process = subprocess.Popen(
            [*command, str(PROGRAM), str(folder), str(10**9), str(seconds_per_step)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.steps: list[Step] = []
        self.lines: list[str] = []
        self.joins: list[float] = []
        self._restarts = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.match(r"\[worker (\d+)\] step (\d+) (\d+) ([\d.]+)", line)
            if found:
                part = int(found[3]) + self._restarts
                self.steps.append(Step(int(found[1]), int(found[2]), part, float(found[4])))
                continue
            self.lines.append(line)
            self._restarts += "restarting all" in line
            if line.startswith("[mirrored]") and "joins:" in line:
                self.joins.append(time.time())

    def kill_one(self, moments: random.Random) -> float:
        """Kills a worker, as soon as there is one, and returns the time.

        Raises:
            SystemExit: The run has ended, or has had no worker for a minute.
        """
        end = time.monotonic() + 60
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                raise SystemExit(f"FAILED: no worker to kill; last lines:\n{''.join(self.lines[-40:])}")
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            workers = []
            for pid in children:
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"mirrored.launcher.program" in words:
                    workers.append(int(pid))
            if workers:
                os.kill(moments.choice(workers), signal.SIGKILL)
                return time.time()
            time.sleep(0.01)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
        """Waits until a condition holds.

        Raises:
            SystemExit: It does not in time, or the run ended before.
        """
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                raise SystemExit(f"FAILED: no {what}; last lines:\n{''.join(self.lines[-40:])}")
            time.sleep(0.01)

    def end(self) -> None:
        """Ends the run."""
        self.process.kill()
        self.process.wait(10)

    @property
    def newest(self) -> int:
        """The last step that was finished."""
        return max((one.step for one in list(self.steps)), default=0)

    def is_beyond(self, part: int) -> bool:
        """Returns whether a step was finished after the given part."""
        return self.steps[-1].part > part

    def is_whole(self, part: int, workers: int) -> bool:
        """Returns whether all workers have finished a step after the given part."""
        newest = self.steps[-1].part if self.steps else 0
        slots = {one.slot for one in self.steps[-8 * workers :] if one.part == newest}
        return newest > part and len(slots) == workers


@dataclasses.dataclass
class Measured:
    """What the first run of a way has measured, in seconds."""

    step: float
    recovery: list[float] = dataclasses.field(default_factory=list)
    join: list[float] = dataclasses.field(default_factory=list)
    pause: list[float] = dataclasses.field(default_factory=list)

    def costs(self) -> FailureCosts:
        """Returns the costs for the prediction; checkpoints of this small program take no time that matters."""
        recovery, join, pause = (statistics.fmean(one or [0.0]) for one in (self.recovery, self.join, self.pause))
        return FailureCosts(0.0, 0.0, 0.0, recovery, recovery, join, pause)


def measure(run: Run, workers: int, failures: int) -> Measured:
    """Measures the time of a step, and kills single workers."""
    moments = random.Random(1)
    run.wait_for(lambda: run.newest > 20, "steps")
    first = run.newest, time.time()
    run.wait_for(lambda: run.newest >= first[0] + _UNDISTURBED_STEPS, "undisturbed steps")
    found = Measured((time.time() - first[1]) / (run.newest - first[0]))
    for _ in range(failures):
        time.sleep(0.5 + moments.random() * SAVE_EVERY * found.step)
        part, known = run.steps[-1].part, len(run.joins)
        killed = run.kill_one(moments)
        run.wait_for(partial(run.is_beyond, part), "step after a failure")
        found.recovery.append(min(one.at for one in list(run.steps) if one.part > part) - killed)
        run.wait_for(partial(run.is_whole, part, workers), "replacement")
        if len(run.joins) > known:
            found.join.append(run.joins[known] - killed)
            times = sorted(one.at for one in list(run.steps) if one.at > killed + found.recovery[-1])
            gaps = [late - early for early, late in zip(times, times[1:], strict=False)]
            found.pause.append(max(gaps) - found.step)
    return found


def disturb(run: Run, failures: int, every: float) -> float:
    """Kills workers at random moments; returns the number of steps per second."""
    moments = random.Random(2)
    gaps = [-every * math.log(1 - (number + 0.5) / failures) for number in range(failures)]
    moments.shuffle(gaps)
    run.wait_for(lambda: run.newest > 20, "steps")
    first, began = run.newest, time.time()
    due = began
    for gap in gaps:
        due += gap
        time.sleep(max(0.0, due - time.time()))
        run.kill_one(moments)
    time.sleep(max(0.0, began + failures * every - time.time()))
    if run.process.poll() is not None:
        raise SystemExit(f"FAILED: the run ended; last lines:\n{''.join(run.lines[-40:])}")
    return (run.newest - first) / (time.time() - began)


def compare(folder: Path, way: str, options: argparse.Namespace) -> float:
    """Measures, predicts and disturbs one way; returns the relative error of the prediction."""
    run = Run(folder / f"{way}-measured", way, options.workers, options.seconds_per_step)
    try:
        measured = measure(run, options.workers, options.measured_failures)
    finally:
        run.end()
    ways = predict_goodput(
        measured.step,
        options.failure_every,
        measured.costs(),
        fewer_speed=1.0,  # the steps of this program mostly sleep
        checkpoint_every_seconds=SAVE_EVERY * measured.step,
        snapshot_every_steps=SNAPSHOT_EVERY,
    )
    predicted = ways[list(WAYS).index(way)].goodput
    run = Run(folder / f"{way}-disturbed", way, options.workers, options.seconds_per_step)
    try:
        actual = disturb(run, options.failures, options.failure_every) * measured.step
    finally:
        run.end()
    error = predicted / actual - 1
    print(
        f"{way}: step {1e3 * measured.step:.1f} ms, recovery {statistics.fmean(measured.recovery):.2f} s, join "
        f"{json.dumps([round(one, 2) for one in measured.join])} s with a pause of "
        f"{json.dumps([round(one, 2) for one in measured.pause])} s; goodput predicted {predicted:.3f}, measured "
        f"{actual:.3f}, error {error:+.1%} ({options.failures} failures, one in {options.failure_every:g} s; load "
        f"{os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return error


def main() -> None:
    """Compares all ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="disk,memory,elastic")
    parser.add_argument("--failures", type=int, default=10)
    parser.add_argument("--failure-every", type=float, default=12.0, help="seconds")
    parser.add_argument("--measured-failures", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds-per-step", type=float, default=0.05)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        errors = [compare(Path(folder), way, options) for way in options.ways.split(",")]
    sys.exit(any(abs(error) > TOLERANCE for error in errors))


if __name__ == "__main__":
    main()
