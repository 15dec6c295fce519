"""Kills workers at random moments and checks that no work is lost.

    python tools/chaos.py --steps 300 --kills 30 --workers 2

The tool runs training twice: undisturbed, and with kills (kill -9 of a random worker, worker 0 included, while it
trains, saves or starts) under `mirrored run --max-restarts`. The second run must end with exit status 0 and
bit-identical variables. Every start must resume from the newest checkpoint that was complete at the kill, or a newer
one. Every step must train on exactly the examples of the undisturbed run.

    python tools/chaos.py --elastic --kills 30

does the same with a job of `mirrored run --elastic`, which must not restart (`chaos_elastic.py`).

The kills are spread over steps, not over time, and the run waits: it does not pass the step of a kill before that kill
has happened. So the run has exactly the requested number of kills, on any machine.
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
from pathlib import Path

import chaos_elastic

ROOT = Path(__file__).parent.parent
PROGRAM = Path(__file__).with_name("chaos_program.py")


# How far a run may advance beyond the step of the next kill, which comes at most this long after that step.
LEASH_STEPS = 3
_JITTER_SECONDS = 0.05
_START_SECONDS = 2.5
_PART_WHILE_STARTING = 0.2


@dataclasses.dataclass(frozen=True)
class Planned:
    """The time of a planned kill.

    Attributes:
        step: The kill follows this step; None: it comes while the workers start after the previous kill.
        delay_seconds: How long after that.
    """

    step: int | None
    delay_seconds: float


@dataclasses.dataclass
class Kill:
    """One kill: the worker, the training step, the newest checkpoint, and the time until the next step.

    Attributes:
        resumed: The step from which the next start resumed; None if it was killed before.
        seconds_to_next_step: None if the next kill came before the next step.
    """

    worker: int
    step: int
    newest: int
    resumed: int | None = None
    seconds_to_next_step: float | None = None


@dataclasses.dataclass(frozen=True)
class Event:
    """A progress line of worker 0: ``step`` or ``resumed``, and the number of the start."""

    kind: str
    step: int
    start: int
    at: float


class Run:
    """A run of the program under `mirrored run`, with its output so far."""

    def __init__(self, folder: Path, *, steps: int, workers: int, seconds_per_step: float, restarts: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }
        command = [
            sys.executable,
            "-m",
            "mirrored.cli",
            "run",
            "--workers",
            str(workers),
            "--max-restarts",
            str(restarts),
        ]
        command += [str(PROGRAM), str(folder), str(steps), str(seconds_per_step)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.step = 0
        self.starts = 1
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("[mirrored]") and "starting all" in line:
                self.starts += 1
            found = re.match(r"\[worker 0\] (step|resumed) (\d+)", line)
            if found:
                self.events.append(Event(found[1], int(found[2]), self.starts, time.monotonic()))
            if found and found[1] == "step":
                self.step = int(found[2])

    @property
    def resumed(self) -> list[int]:
        """The steps from which the starts resumed."""
        return [event.step for event in list(self.events) if event.kind == "resumed"]

    def first(self, kind: str, start: int) -> Event | None:
        """Returns the first such line of a start; None before it comes."""
        return next((event for event in list(self.events) if (event.kind, event.start) == (kind, start)), None)

    def leash(self, step: int | None) -> None:
        """Makes the program wait before it passes a step; None removes the limit."""
        path, new = self.folder / "leash", self.folder / "leash.new"
        if step is None:
            path.unlink(missing_ok=True)
        else:
            new.write_text(str(step))
            new.replace(path)

    def workers(self) -> dict[int, int]:
        """Returns the running processes by rank."""
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in children.read_text().split() if children.exists() else []:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                variables = dict(
                    pair.split(b"=", 1)
                    for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    if b"=" in pair
                )
            except OSError:
                continue
            if b"mirrored.launcher.program" in words and b"TF_CONFIG" in variables:
                found[json.loads(variables[b"TF_CONFIG"])["task"]["index"]] = int(pid)
        return found

    def wait(self, timeout: float) -> int:
        """Waits for the end and returns the exit status."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit(f"FAILED: no end after {timeout:.0f} s\n{''.join(self.lines[-60:])}") from None
        self._reader.join(10)
        return code

    def close(self) -> None:
        """Ends the run if necessary, and closes its output."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def newest_checkpoint(self) -> int:
        """Returns the step of the newest complete checkpoint."""
        names = [one.name for one in (self.folder / "checkpoints").glob("ckpt-*")]
        return max((int(name.removeprefix("ckpt-")) for name in names if re.fullmatch(r"ckpt-\d+", name)), default=0)

    def weights(self) -> set[str]:
        """Returns the digests of all workers' variables."""
        return {one.read_text() for one in self.folder.glob("weights-*.txt")}

    def examples(self) -> dict[int, list[int]]:
        """Returns, by step, the examples of all workers in the last execution of that step."""
        trained: dict[int, list[int]] = {}
        for path in sorted(self.folder.glob("examples-*.txt")):
            mine = {}
            for line in path.read_text().splitlines():
                step, *ids = map(int, line.split())
                mine[step] = ids
            for step, ids in mine.items():
                trained.setdefault(step, []).extend(ids)
        return {step: sorted(ids) for step, ids in trained.items()}


def wait_for(run: Run, condition, seconds: float = 120) -> bool:  # type: ignore[no-untyped-def]
    """Returns whether the condition became true before the run ended."""
    end = time.monotonic() + seconds
    while not condition():
        if run.process.poll() is not None:
            return False
        if time.monotonic() > end:
            run.process.kill()
            raise SystemExit(f"FAILED: nothing happened for {seconds:.0f} s\n{''.join(run.lines[-60:])}")
        time.sleep(0.003)
    return True


def plan(moments: random.Random, *, steps: int, kills: int) -> list[Planned]:
    """Plans kills at random steps, and some of them while the workers start after another kill.

    Raises:
        ValueError: The number of kills exceeds the number of steps.
    """
    starting = int(_PART_WHILE_STARTING * kills)
    last = steps - LEASH_STEPS - 1
    if kills - starting > last - 1:
        raise ValueError(f"{kills} kills do not fit into {steps} steps")
    planned = [
        Planned(step, moments.random() * _JITTER_SECONDS)
        for step in sorted(moments.sample(range(2, last + 1), kills - starting))
    ]
    for _ in range(starting):
        place = moments.randint(1, len(planned))
        planned.insert(place, Planned(None, moments.random() * _START_SECONDS))
    return planned


def torment(run: Run, moments: random.Random, *, steps: int, kills: int) -> list[Kill]:
    """Kills random workers at random moments of a run that has just begun, exactly `kills` times."""
    planned = plan(moments, steps=steps, kills=kills)
    done: list[tuple[Kill, int, float]] = []
    reached = 0
    for one in planned:
        if one.step is not None:
            reached = one.step
            run.leash(reached + LEASH_STEPS)
            _expect(run, lambda step=reached: run.step >= step and run.first("step", run.starts), f"step {reached}")
        time.sleep(one.delay_seconds)
        _expect(run, run.workers, "workers to kill")
        worker, process = moments.choice(sorted(run.workers().items()))
        kill, start, killed_at = Kill(worker, run.step, run.newest_checkpoint()), run.starts, time.monotonic()
        os.kill(process, signal.SIGKILL)
        _expect(run, lambda start=start: run.starts > start, "another start")
        done.append((kill, start + 1, killed_at))
    _expect(run, lambda: run.first("step", done[-1][1]), "a step after the last kill")
    run.leash(None)
    for kill, start, killed_at in done:
        resumed, stepped = run.first("resumed", start), run.first("step", start)
        kill.resumed = None if resumed is None else resumed.step
        kill.seconds_to_next_step = None if stepped is None else stepped.at - killed_at
    return [kill for kill, _, _ in done]


def _expect(run: Run, condition, what: str) -> None:  # type: ignore[no-untyped-def]
    if not wait_for(run, condition):
        raise SystemExit(f"FAILED: the run ended before {what}\n{''.join(run.lines[-60:])}")


def check(left_alone: Run, killed: Run, kills: list[Kill], *, steps: int) -> list[str]:
    """Returns the violations; empty if there are none."""
    wrong = []
    if killed.weights() != left_alone.weights() or len(killed.weights()) != 1:
        wrong.append(f"the weights differ: {killed.weights()} with kills, {left_alone.weights()} without")
    wrong += [
        f"{kill}: a checkpoint was lost" for kill in kills if kill.resumed is not None and kill.resumed < kill.newest
    ]
    expected, trained = left_alone.examples(), killed.examples()
    if sorted(trained) != list(range(1, steps + 1)):
        wrong.append(f"steps were skipped: {sorted(set(range(1, steps + 1)) - set(trained))}")
    wrong += [
        f"step {step} has trained on {trained.get(step)}, not on {ids}"
        for step, ids in expected.items()
        if trained.get(step) != ids
    ]
    return wrong


def main() -> None:
    """Runs both, compares them, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--workers", type=int, help="2 by default; with --elastic 4, and at least 3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds-per-step", type=float, default=0.02)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--elastic", action="store_true", help="a job of mirrored run --elastic")
    parser.add_argument("--stops", type=int, default=0, help="with --elastic: stop workers (SIGSTOP) instead")
    parser.add_argument("--slow", type=int, default=0, help="with --elastic: slow workers down tenfold instead")
    parser.add_argument("--plain", action="store_true", help="with --elastic: without deterministic=True")
    options = parser.parse_args()
    if options.elastic:
        if options.workers is not None and options.workers < 3:
            parser.error("--elastic kills two workers at once, and one must survive: pass --workers 3 or more")
        chaos_elastic.main(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        common = {"steps": options.steps, "workers": options.workers or 2, "seconds_per_step": options.seconds_per_step}
        left_alone = Run(Path(folder) / "left_alone", restarts=0, **{**common, "seconds_per_step": 0.0})
        code = left_alone.wait(options.timeout)
        if code:
            raise SystemExit(f"FAILED: the undisturbed run ended with {code}\n{''.join(left_alone.lines[-60:])}")
        killed = Run(Path(folder) / "killed", restarts=options.kills, **common)
        kills = torment(killed, random.Random(options.seed), steps=options.steps, kills=options.kills)
        code = killed.wait(options.timeout)
        wrong = [f"it ended with {code}\n{''.join(killed.lines[-60:])}"] if code else []
        wrong += check(left_alone, killed, kills, steps=options.steps)
        report(kills, killed)
    if wrong:
        raise SystemExit("FAILED:\n" + "\n".join(wrong[:20]))
    print(f"OK: {len(kills)} kills over {options.steps} steps; bit-identical, same examples, no checkpoint lost")


def report(kills: list[Kill], killed: Run) -> None:
    """Prints what happened, kill by kill."""
    for kill in kills:
        print(f"worker {kill.worker} at step {kill.step}, checkpoint {kill.newest}: resumed {kill.resumed}, "
              f"next step after {kill.seconds_to_next_step or float('nan'):.1f} s")  # fmt: skip
    seconds = sorted(kill.seconds_to_next_step for kill in kills if kill.seconds_to_next_step is not None)
    if seconds:
        print(f"from kill to next step: median {statistics.median(seconds):.1f} s, longest {seconds[-1]:.1f} s")


if __name__ == "__main__":
    main()
