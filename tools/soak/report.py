"""The findings of the soak test: collected while it runs, printed at its end."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from soak.judge import Verdict
from soak.program import Program


@dataclasses.dataclass
class Finding:
    """One signature, with its number of occurrences and its simplest program.

    Attributes:
        signature: The common property of its occurrences.
        program: The simplest program.
        verdict: The verdict on that program.
        script: The path of its script.
        drawn: The number of the first program with this signature.
        seconds: The time of the first occurrence.
        count: The number of programs with this signature.
    """

    signature: str
    program: Program
    verdict: Verdict
    script: Path | None
    drawn: int
    seconds: float
    count: int = 1


class Report:
    """Counts programs and verdicts, and collects the findings."""

    def __init__(self) -> None:
        self.findings: dict[str, Finding] = {}
        self.statuses: collections.Counter[str] = collections.Counter()
        self.decisions: collections.Counter[tuple[str, str]] = collections.Counter()
        self.refusals: collections.Counter[str] = collections.Counter()

    @property
    def programs(self) -> int:
        """The number of programs that have run."""
        return sum(self.statuses.values())

    def count(self, program: Program, verdict: Verdict) -> None:
        """Counts one program."""
        self.statuses[verdict.status] += 1
        for name in ("kind", "update", "way", "source", "event", "model"):
            if program.kind == "training" or name == "kind":
                self.decisions[name, getattr(program, name)] += 1
        if verdict.status == "refused":
            self.refusals[f"{program.kind} {program.variant or program.model}: {verdict.signature}"] += 1

    def show(self, console: Console, seconds: float) -> None:
        """Prints the summary."""
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        console.print(f"{self.programs} programs in {seconds / 60:.1f} min: {counts or 'none'}")
        for names in ("kind", "update", "way", "source", "event", "model"):
            parts = [f"{value} {count}" for (name, value), count in self.decisions.most_common() if name == names]
            console.print(f"  {names}: {', '.join(parts)}", highlight=False)
        for reason, count in self.refusals.most_common():
            console.print(f"  refused: {reason} ({count})", highlight=False, markup=False)
        if not self.findings:
            console.print("no difference")
            return
        table = Table("finding", "programs", "first", "script")
        for finding in self.findings.values():
            place = f"program {finding.drawn}, {finding.seconds:.0f} s"
            table.add_row(finding.signature, str(finding.count), place, str(finding.script or ""))
        console.print(table)

    def as_json(self, seconds: float) -> dict[str, Any]:
        """Returns the summary as data."""
        return {
            "seconds": round(seconds),
            "programs": self.programs,
            "statuses": dict(self.statuses),
            "decisions": {f"{name}={value}": count for (name, value), count in self.decisions.items()},
            "refusals": dict(self.refusals),
            "findings": [
                {
                    "signature": one.signature,
                    "program": json.loads(one.program.as_json()),
                    "text": one.verdict.text[-3000:],
                    "script": str(one.script),
                    "drawn": one.drawn,
                    "seconds": round(one.seconds),
                    "count": one.count,
                }
                for one in self.findings.values()
            ],
        }
