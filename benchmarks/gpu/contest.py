"""Contenders in processes, timed in interleaved rounds; one that fails leaves its traceback and the rest go on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from processes import ContenderError, Process, interpreter
from spec import TINY_VARIABLE

from gpu.recording import Recorder

TINY: Final = bool(os.environ.get(TINY_VARIABLE))
"""Whether this is the dry run."""
VIRTUAL: Final = 2 if TINY else 8
"""Virtual replicas on the one GPU."""
XLA_ATTENTION: Final = "with XLA's attention"
"""In the label of variants that could not take cuDNN's."""
TORCH: Final = ("torch_ddp", "torch_compiled")
NAMES: Final = {
    "jax_hand_written": "hand-written JAX",
    "mirrored_compiled": "mirrored",
    "mirrored_eager": "mirrored, jnp functions",
    "torch_ddp": "PyTorch, eager",
    "torch_compiled": "torch.compile",
}
ANSWER_SECONDS: Final = 500.0 if TINY else 100.0
"""How long a contender may take for one answer, the first step of W5 being the longest."""
_TIMING_SECONDS: Final = 0.002 if TINY else 0.25


class Entrant:
    """One contender in a contest.

    Attributes:
        name: The contender.
        key: Its job's name in the process.
        figures: What was measured.
        calls: How many calls make one timing.
    """

    def __init__(self, process: Process, name: str, key: str | None = None) -> None:
        self.process = process
        self.name = name
        self.key = key or name
        self.figures: dict[str, Any] = {}
        self.calls = 1
        self.failure: ContenderError | None = None

    def prepare(self, workload: str, job: str = "train", **more: Any) -> None:
        """Makes its job: figures of the first step; then finds how many calls make one timing."""
        asked = {"name": self.key, "contender": self.name, "job": job, "workload": workload, "devices": 1}
        first = self.process.ask("make", **asked, **more)
        self.figures |= {"first_seconds": first["first_seconds"], "first_loss": first["result"]}
        self.process.ask("measure", name=self.key, calls=2)
        once = self.process.ask("stream", name=self.key, calls=3)["seconds"]
        self.calls = max(1, min(500, round(_TIMING_SECONDS / max(once, 1e-6))))

    def time(self, do: str) -> None:
        """One timing: ``measure`` waits for every step, ``stream`` for the last one."""
        if self.failure is None:
            try:
                seconds = self.process.ask(do, name=self.key, calls=self.calls)["seconds"]
                self.figures.setdefault(do, []).append(seconds)
            except ContenderError as error:
                self.failure = error


class Pool:
    """Processes of contenders: one for hand-written JAX and mirrored, one for each of PyTorch's.

    A process that has ended (its contender took too long, or crashed) is replaced when it is needed again.
    """

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}

    def process(self, name: str) -> Process:
        """The process of a contender."""
        key = name if name in TORCH else "jax_hand_written"
        process = self._processes.get(key)
        if process is None or process.has_ended:
            process = self._processes[key] = Process(key, 1, ANSWER_SECONDS)
            if key not in TORCH:
                process.ask("load", contender="mirrored_compiled")
        return process

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()


def prepared(
    recorder: Recorder, label: str, pool: Pool, names: Sequence[str], workload: str, **more: Any
) -> list[Entrant]:
    """Contenders that have made their first step; those that could not are recorded."""
    ready = []
    for name in names:
        with recorder.variant(f"{label}, {NAMES[name]}, first step") as figures:
            entrant = Entrant(pool.process(name), name, f"{name} {workload}")
            entrant.prepare(workload, **more)
            figures |= entrant.figures
            ready.append(entrant)
    return ready


def contend(recorder: Recorder, label: str, entrants: Sequence[Entrant], rounds: int, ways: Sequence[str]) -> None:
    """Times all in turn, round by round, and records each; the order turns."""
    for way in ways:
        for round_ in range(rounds):
            shift = round_ % max(1, len(entrants))
            for entrant in [*entrants[shift:], *entrants[:shift]][:: 1 if round_ % 2 == 0 else -1]:
                entrant.time(way)
    for entrant in entrants:
        with recorder.variant(f"{label}, {NAMES[entrant.name]}") as figures:
            if entrant.failure is not None:
                raise entrant.failure
            figures |= entrant.figures
            dispatch = entrant.process.ask("dispatch", name=entrant.key, calls=min(50, 2 * entrant.calls))
            figures["dispatch_seconds"] = dispatch["seconds"]
            figures |= entrant.process.ask("device")


def facts(recorder: Recorder, label: str, entrants: Sequence[Entrant]) -> None:
    """Records what the programs say of themselves: their memory."""
    for entrant in entrants:
        with recorder.variant(f"{label}, {NAMES[entrant.name]}, program") as figures:
            figures |= entrant.process.ask("facts", name=entrant.key)


def without_torch(recorder: Recorder, label: str, names: Sequence[str]) -> list[str]:
    """The contenders that can run here; those of PyTorch are recorded as left out where it is not installed."""
    if interpreter("torch_ddp") is not None:
        return list(names)
    for name in set(names) & set(TORCH):
        recorder.left_out(f"{label}, {NAMES[name]}", "PyTorch is not installed")
    return [name for name in names if name not in TORCH]
