"""Rounds: each round times every contender once, in rotating order."""

from __future__ import annotations

from collections.abc import Sequence

from processes import ContenderError, Process

from sections.options import say

SECONDS_PER_TIMING = 0.06


class Entrant:
    """One contender of a contest.

    Attributes:
        name: The contender.
        first: The answer to the creation of its job.
        seconds: One figure per round.
        failure: Why it no longer takes part, if so.
    """

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.seconds: list[float] = []
        self.calls = 1
        self.first: dict[str, float] = {}
        self.failure: str | None = None

    def prepare(self, job: str, workload: str, **more: int) -> None:
        """Creates its job, and finds the number of calls per timing."""
        try:
            self.first = self.process.make(job, workload, self.name, **more)
            self.process.ask("measure", name=self.name, calls=2)
            once = self.process.ask("measure", name=self.name, calls=3)["seconds"]
            self.calls = max(1, min(200, round(SECONDS_PER_TIMING / max(once, 1e-6))))
        except ContenderError as error:
            self._leave(error)

    def time(self) -> None:
        """Takes one timing; a contender that fails has no more timings."""
        if self.failure is None:
            try:
                self.seconds.append(self.process.ask("measure", name=self.name, calls=self.calls)["seconds"])
            except ContenderError as error:
                self._leave(error)

    def _leave(self, error: ContenderError) -> None:
        self.failure = str(error)
        say(f"  {self.name} is skipped: {self.failure[:300]}")


def contest(entrants: Sequence[Entrant], rounds: int) -> None:
    """Times all entrants, round by round."""
    for round_ in range(rounds):
        shift = round_ % max(1, len(entrants))
        for entrant in [*entrants[shift:], *entrants[:shift]][:: 1 if round_ % 2 == 0 else -1]:
            entrant.time()
