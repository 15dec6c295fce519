"""Kills or stops workers of an elastic job; checks that it continues in the surviving processes (`chaos.py --elastic`).

Episodes of one or several kills: a random worker, worker 0, two at once, a second one while the job reconfigures, one
while a replacement joins. After each episode the job has all its workers again. At the end the state, the metric, and
the examples and the loss of every step must be those of an undisturbed run, and one process must have lived from the
beginning to the end of each episode.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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

ROOT = Path(__file__).parent.parent
PROGRAM = Path(__file__).with_name("chaos_elastic_program.py")
KINDS = ("one", "first", "pair", "reconfiguration", "join")
WORKERS = 4  # unless --workers is given
HEARTBEAT_SECONDS = 4
_MARGIN_STEPS = 150
_TOLERANCE = 1e-5
_NAMED_SECONDS = 30.0
_CALM_SECONDS = 4.0


@dataclasses.dataclass(frozen=True)
class Step:
    """A line of a worker about a finished step."""

    index: int
    step: int
    epoch: int
    at: float


@dataclasses.dataclass
class Episode:
    """What was done to the job, and how long it took to go on.

    Attributes:
        kind: See `KINDS`, or ``stop``, or ``slow``.
        failures: The number of kills.
        recovery_seconds: From the last failure to the next finished step; of a slow worker: until it is named.
        join_seconds: The longest pause between two steps while replacements joined.
    """

    kind: str
    failures: int
    recovery_seconds: float
    join_seconds: float


class ElasticRun:
    """A run of the program under `mirrored run --elastic`, with its output so far."""

    def __init__(self, folder: Path, *, steps: int, workers: int, seconds_per_step: float, plain: bool) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.num_workers = workers
        self.steps: list[Step] = []
        self.changes: list[tuple[float, str]] = []
        self.lines: list[str] = []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "MIRRORED_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
            "CHAOS_DETERMINISTIC": "0" if plain else "1",
        }
        command = [sys.executable, "-m", "mirrored.cli", "run", "--elastic", "--workers", str(workers)]
        command += ["--log-dir", str(folder / "logs")]
        self.process = subprocess.Popen(
            [*command, str(PROGRAM), str(folder), str(steps), str(seconds_per_step)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.match(r"\[worker (\d+)\] step (\d+) (\d+) ([\d.]+)", line)
            if found:
                self.steps.append(Step(int(found[1]), int(found[2]), int(found[3]), float(found[4])))
            elif line.startswith("[mirrored]") and "(epoch" in line:
                self.changes.append((time.time(), line))
            if not found:
                self.lines.append(line)

    @property
    def epoch(self) -> int:
        """The newest epoch in which a step was finished."""
        return self.steps[-1].epoch if self.steps else 0

    def workers(self) -> list[int]:
        """Returns the ids of the worker processes in the order of their start."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = []
        for pid in children.read_text().split() if children.exists() else []:
            try:
                if b"mirrored.launcher.program" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(pid))
            except OSError:
                continue
        return found

    def processes(self) -> dict[int, int]:
        """Returns the worker processes by worker index."""
        found = {}
        for pid in self.workers():
            try:
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            variables = dict(word.split(b"=", 1) for word in words if b"=" in word)
            if b"MIRRORED_ELASTIC" in variables:
                found[int(variables[b"MIRRORED_ELASTIC"])] = pid
        return found

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
        """Waits until a condition holds.

        Raises:
            SystemExit: It does not in time, or the run ended before.
        """
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise SystemExit(f"FAILED: no {what}; last lines:\n{''.join(self.lines[-60:])}")
            time.sleep(0.005)

    def is_whole(self) -> bool:
        """Returns whether all workers have finished a step of the newest epoch."""
        epoch = self.epoch
        newest = self.steps[-12 * self.num_workers :]
        return len({one.index for one in newest if one.epoch == epoch}) == self.num_workers

    def end(self, timeout: float) -> None:
        """Waits for the end of the run.

        Raises:
            SystemExit: It failed.
        """
        code: int | str
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "no end"
        self._reader.join(10)
        if code:
            raise SystemExit(f"FAILED: {code}\n{''.join(self.lines[-80:])}")

    def finals(self) -> list[dict[str, object]]:
        """Returns the final states that the workers have written."""
        return [json.loads(one.read_text()) for one in sorted(self.folder.glob("final-*.json"))]

    def phases(self) -> dict[str, list[float]]:
        """Returns how long each phase of a change took on the workers that stayed, and what they did in the last."""
        found: dict[str, list[float]] = {}
        for line in (self.folder / "logs" / "elastic.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "stepped" and event["phases"][0][0] == "interrupting":
                parts = [(name, seconds) for name, _, seconds in event["phases"]]
                for name, seconds in [*parts, *event["programs"].items()]:
                    found.setdefault(name, []).append(seconds)
        return found

    def trained(self) -> dict[int, tuple[str, list[int]]]:
        """Returns, by step, the loss and the examples of all workers in the last epoch that executed it."""
        newest: dict[int, int] = {}
        found: dict[int, tuple[str, list[int]]] = {}
        for path in sorted(self.folder.glob("examples-*.txt")):
            for line in path.read_text().splitlines():
                try:
                    epoch, step, loss, rows = json.loads(line)
                except ValueError:  # the worker was killed while it wrote
                    continue
                if epoch > newest.get(step, 0):
                    newest[step], found[step] = epoch, (loss, [])
                if epoch == newest[step]:
                    found[step][1].extend(rows)
        return {step: (loss, sorted(rows)) for step, (loss, rows) in found.items()}


def kill(run: ElasticRun, moments: random.Random, kind: str) -> tuple[int, float, int]:
    """Executes the kills of one episode; returns their number, the time of the last one, and the epoch before it."""
    processes = run.processes()
    first = 0 if kind == "first" else moments.choice(sorted(processes))
    victims = [first]
    if kind in ("pair", "reconfiguration"):
        victims.append(moments.choice(sorted(set(processes) - {first})))
    for number, victim in enumerate(victims):
        if number and kind == "reconfiguration":
            time.sleep(moments.random() * 0.8)
        epoch, at = run.epoch, time.time()
        os.kill(processes[victim], signal.SIGKILL)
    if kind == "join":
        known = len(run.changes)
        run.wait_for(lambda: any("joins" in line for _, line in run.changes[known:]), "joining worker")
        time.sleep(moments.random() * 0.8)
        processes, epoch, at = run.processes(), run.epoch, time.time()
        victims.append(moments.choice(sorted(processes)))
        os.kill(processes[victims[-1]], signal.SIGKILL)
    return len(victims), at, epoch


def stop(run: ElasticRun, moments: random.Random) -> tuple[int, float, int]:
    """Stops a worker, and continues its process after the job has gone on."""
    pid = moments.choice(sorted(run.processes().values()))
    epoch, at = run.epoch, time.time()
    os.kill(pid, signal.SIGSTOP)
    run.wait_for(lambda: run.epoch > epoch, "step after a stop")
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
    return 1, at, epoch


def slow_down(run: ElasticRun, moments: random.Random) -> Episode:
    """Stops a worker for 90 of each 100 ms, until the launcher names it; then the job must go on at full speed.

    Raises:
        SystemExit: It is not named in time, or the job does not go on meanwhile.
    """
    index, pid = moments.choice(sorted(run.processes().items()))
    epoch, began, known, first = run.epoch, time.time(), len(run.lines), run.steps[-1].step

    def is_named() -> bool:
        return any(f"worker {index} runs" in line for line in run.lines[known:])

    while not is_named() and time.time() < began + _NAMED_SECONDS:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.09)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    named = time.time() - began
    run.wait_for(lambda: run.steps[-1].at > began + named, "step after a worker was slow")
    if not is_named() or run.epoch != epoch:
        raise SystemExit(f"FAILED: worker {index} was slow and not named\n{''.join(run.lines[-40:])}")
    print(f"worker {index} was slowed tenfold: named after {named:.1f} s, {run.steps[-1].step - first} steps meanwhile")
    time.sleep(_CALM_SECONDS)  # a worker is named again only after it was as fast as the others
    return Episode("slow", 0, named, 0.0)


def episode(run: ElasticRun, moments: random.Random, kind: str) -> Episode:
    """Executes one episode, and waits until all workers train again."""
    time.sleep(moments.random() * 0.3)
    if kind == "slow":
        return slow_down(run, moments)
    survivors = set(run.workers())
    count, at, epoch = stop(run, moments) if kind == "stop" else kill(run, moments, kind)

    def after() -> list[float]:
        return [one.at for one in list(run.steps) if one.epoch > epoch and one.at > at]

    run.wait_for(lambda: bool(after()), "step after a failure")
    recovery = min(after()) - at
    run.wait_for(lambda: run.is_whole() and run.epoch > epoch, "replacement")
    time.sleep(0.2)
    if not survivors & set(run.workers()):
        raise SystemExit("FAILED: no process has survived the episode")
    times = sorted(one.at for one in list(run.steps) if one.at > at + recovery)
    pause = max((late - early for early, late in zip(times, times[1:], strict=False)), default=0.0)
    return Episode(kind, count, recovery, pause)


def check(left_alone: ElasticRun, killed: ElasticRun, steps: int, *, plain: bool) -> list[str]:
    """Returns the differences between the runs; empty if there are none."""
    ours, theirs = killed.finals(), left_alone.finals()
    wrong = []
    if plain:
        for one in ours:
            pairs = zip(one["sums"], theirs[0]["sums"], strict=True)  # type: ignore[call-overload]
            wrong += [f"{a} != {b}" for a, b in pairs if abs(a - b) > _TOLERANCE * max(1.0, abs(b))]
    elif any(one != theirs[0] for one in [*ours, *theirs]):
        wrong.append(f"the final state differs: {ours} with failures, {theirs} without")
    if len(ours) < killed.num_workers:
        wrong.append(f"{len(ours)} workers have finished")
    expected, trained = left_alone.trained(), killed.trained()
    if sorted(trained) != list(range(1, steps + 1)):
        wrong.append(f"steps were skipped: {sorted(set(range(1, steps + 1)) - set(trained))[:20]}")
    for step, (loss, rows) in expected.items():
        got = trained.get(step, ("", []))
        if got[1] != rows or (got[0] != loss and not plain):
            wrong.append(f"step {step}: loss and examples {got}, not {loss, rows}")
    return wrong


def planned(moments: random.Random, options: argparse.Namespace) -> list[str]:
    """Returns the kinds of the episodes: `kills` failures, all kinds about equally often."""
    if options.stops or options.slow:
        return ["stop"] * options.stops + ["slow"] * options.slow
    kinds: list[str] = []
    left = options.kills
    while left > 0:
        kind = KINDS[len(kinds) % len(KINDS)]
        kind = "one" if left == 1 else kind
        kinds.append(kind)
        left -= 1 if kind in ("one", "first") else 2
    moments.shuffle(kinds)
    return kinds


def main(options: argparse.Namespace) -> None:
    """Runs the job with failures, then undisturbed; compares them, and prints the result."""
    moments = random.Random(options.seed)
    start = partial(ElasticRun, workers=options.workers or WORKERS, plain=options.plain)
    with tempfile.TemporaryDirectory() as folder:
        killed = start(Path(folder) / "killed", steps=10**9, seconds_per_step=options.seconds_per_step)
        episodes = []
        try:
            killed.wait_for(killed.is_whole, "first step", 180)
            for kind in planned(moments, options):
                episodes.append(episode(killed, moments, kind))
                one = episodes[-1]
                print(
                    f"{one.kind:15} {one.failures} failure(s): next step after {one.recovery_seconds:.2f} s, longest "
                    f"pause while workers joined {one.join_seconds:.2f} s (load {os.getloadavg()[0]:.1f})",
                    flush=True,
                )
            steps = max(one.step for one in killed.steps) + _MARGIN_STEPS
            new = killed.folder / "last_step.new"
            new.write_text(str(steps))
            new.replace(killed.folder / "last_step")
            killed.end(options.timeout)
            killed_phases = killed.phases()
        finally:
            killed.process.kill()
        left_alone = start(Path(folder) / "left_alone", steps=steps, seconds_per_step=0.0)
        left_alone.end(options.timeout)
        wrong = check(left_alone, killed, steps, plain=options.plain)
    report(episodes, killed_phases)
    if wrong:
        raise SystemExit("FAILED:\n" + "\n".join(wrong[:20]))
    same = "within 1e-5" if options.plain else "bit-identical"
    print(f"OK: {sum(one.failures for one in episodes)} failures over {steps} steps, no restart; {same}, same examples")


def report(episodes: list[Episode], phases: dict[str, list[float]]) -> None:
    """Prints the times of all episodes, and the medians of the phases of changes."""
    recoveries = sorted(one.recovery_seconds for one in episodes)
    joins = sorted(one.join_seconds for one in episodes)
    print(
        f"from the last failure to the next step: median {statistics.median(recoveries):.2f} s, longest "
        f"{recoveries[-1]:.2f} s, {sum(one > 2 for one in recoveries)} of {len(recoveries)} above 2 s; pause while "
        f"workers join: median {statistics.median(joins):.2f} s, longest {joins[-1]:.2f} s"
    )
    medians = ", ".join(f"{name} {statistics.median(seconds):.3f} s" for name, seconds in phases.items())
    print(f"medians of the workers that stayed: {medians}")
