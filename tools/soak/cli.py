"""The command line of the soak test."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from soak.draw import programs
from soak.judge import Verdict, judge
from soak.pool import Runner
from soak.program import Program
from soak.report import Finding, Report
from soak.script import body_of, standalone
from soak.shrink import shrink

_SOURCE: Final = Path(__file__).parents[2] / "src"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=10.0, help="Duration in minutes.")
@click.option("--seed", type=int, default=0, help="Random seed; the same seed draws the same programs.")
@click.option("--programs", "limit", type=click.IntRange(min=1), help="Maximum number of programs.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Skip this many programs of the seed.")
@click.option("--kind", "kinds", multiple=True, help="Run only programs of this kind (repeatable).")
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=_SOURCE,
    help="Folder with the mirrored package to test.",
)
@click.option("--seconds", type=click.FloatRange(min=1), default=180.0, help="Time limit per program in seconds.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("soak_findings"),
    help="Folder for the scripts of findings.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="JSON file for the summary.")
@click.option("--shrink/--no-shrink", "shrinks", default=True, help="Whether to shrink failing programs.")
@click.option("--first/--all", "stops", default=False, help="Stop at the first finding.")
def main(
    minutes: float,
    seed: int,
    limit: int | None,
    skip: int,
    kinds: tuple[str, ...],
    source: Path,
    seconds: float,
    output: Path,
    json_path: Path | None,
    shrinks: bool,
    stops: bool,
) -> None:
    """Draw training programs and compare each with single-device JAX. The exit status is 1 if one differs."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    console = Console()
    soak = Soak(Runner(source.absolute(), seconds), output, console, shrinks=shrinks)
    drawn = itertools.islice(programs(seed), skip, None if limit is None else skip + limit)
    try:
        with _progress(console, minutes) as progress:
            task = progress.add_task("", total=minutes * 60)
            for number, program in enumerate(drawn, skip):
                if soak.elapsed > minutes * 60 or (stops and soak.report.findings):
                    break
                if not kinds or program.kind in kinds:
                    soak.look(number, program)
                text = f"{soak.report.programs} programs, {len(soak.report.findings)} findings"
                progress.update(task, completed=min(soak.elapsed, minutes * 60), description=text)
    finally:
        soak.close()
    soak.report.show(console, soak.elapsed)
    if json_path is not None:
        json_path.write_text(json.dumps(soak.report.as_json(soak.elapsed), indent=1), encoding="utf-8")
    sys.exit(bool(soak.report.findings))


def _progress(console: Console, minutes: float) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console)


class Soak:
    """Runs programs and collects findings.

    Args:
        runner: The process that runs programs.
        output: The folder for scripts.
        console: The console for output.
        shrinks: Whether to shrink failing programs.
    """

    def __init__(self, runner: Runner, output: Path, console: Console, *, shrinks: bool = True) -> None:
        self._runner, self._output, self._console, self._shrinks = runner, output, console, shrinks
        self._began = time.monotonic()
        self.report = Report()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def verdict(self, program: Program) -> Verdict:
        """Runs a program and returns its verdict."""
        return judge(program, self._runner.run(body_of(program)))

    def look(self, number: int, program: Program) -> Verdict:
        """Runs program `number` and records the verdict."""
        verdict = self.verdict(program)
        self.report.count(program, verdict)
        if not verdict.is_finding:
            return verdict
        known = self.report.findings.get(verdict.signature)
        if known is not None:
            known.count += 1
            return verdict
        began = self.elapsed
        signature = verdict.signature
        if self._shrinks:
            program, verdict = self._shrunk(program, verdict)
        script = self._written(number, program, verdict)
        self.report.findings[signature] = Finding(signature, program, verdict, script, number, began)
        self._console.print(
            f"[red]program {number}[/]: {signature}\n  {program.changes()}\n  {script}", highlight=False
        )
        self._console.print(verdict.text.strip()[-1500:], markup=False, highlight=False)
        return verdict

    def close(self) -> None:
        """Ends the process that runs programs."""
        self._runner.close()

    def _shrunk(self, program: Program, verdict: Verdict) -> tuple[Program, Verdict]:
        verdicts = {program: verdict}

        def fails(simpler: Program) -> bool:
            found = self.verdict(simpler)
            verdicts[simpler] = found
            return found.is_finding and found.signature == verdict.signature

        # Every trial of a deadlock takes the full time limit.
        smallest = shrink(program, fails, trials=12 if verdict.status == "lost" else 60)
        return smallest, verdicts[smallest]

    def _written(self, number: int, program: Program, verdict: Verdict) -> Path:
        self._output.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "_", verdict.signature).strip("_")[:60]
        path = self._output / f"{number:05d}_{name}.py"
        path.write_text(standalone(program, verdict.expected, verdict.text), encoding="utf-8")
        return path
