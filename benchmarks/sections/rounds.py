"""Rounds: every contender is timed once in each, in an order that turns."""

from __future__ import annotations

from collections.abc import Sequence

from processes import ContenderError, Process

from sections.options import say

SECONDS_PER_TIMING = 0.06


class Entrant:
    """One contender in a contest.

    Attributes:
        name: The contender.
        first: What making its job told.
        seconds: One figure for each round.
        failure: Why it is out, if so.
    """

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.seconds: list[float] = []
        self.calls = 1
        self.first: dict[str, float] = {}
        self.failure: str | None = None

    def prepare(self, job: str, workload: str, **more: int) -> None:
        """Makes its job, and finds how many calls make one timing."""
        try:
            self.first = self.process.make(job, workload, self.name, **more)
            self.process.ask("measure", name=self.name, calls=2)
            once = self.process.ask("measure", name=self.name, calls=3)["seconds"]
            self.calls = max(1, min(200, round(SECONDS_PER_TIMING / max(once, 1e-6))))
        except ContenderError as error:
            self._leave(error)

    def time(self) -> None:
        """One timing; a contender that fails has none from then on."""
        if self.failure is None:
            try:
                self.seconds.append(self.process.ask("measure", name=self.name, calls=self.calls)["seconds"])
            except ContenderError as error:
                self._leave(error)

    def _leave(self, error: ContenderError) -> None:
        self.failure = str(error)
        say(f"  {self.name} is out: {self.failure[:300]}")


def contest(entrants: Sequence[Entrant], rounds: int) -> None:
    """Times all of them, round by round."""
    for round_ in range(rounds):
        shift = round_ % max(1, len(entrants))
        for entrant in [*entrants[shift:], *entrants[:shift]][:: 1 if round_ % 2 == 0 else -1]:
            entrant.time()
