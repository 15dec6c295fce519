"""Tables of the notebooks' results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from notebook.comparison import Comparison
from notebook.observations import Observation
from notebook.results import NotebookResult


def show(results: Sequence[NotebookResult], console: Console, *, verbose: bool) -> None:
    """Prints one row per notebook, the failures, and why cells are out of scope.

    Args:
        results: The results of all notebooks.
        console: The console.
        verbose: Whether to print the tracebacks of failed cells.
    """
    console.print(_summary(results))
    for result in results:
        for cell in result.cells:
            if cell.status == "failed":
                where = f"[bold]{escape(result.name)}[/] cell {cell.number}"
                console.print(f"[red]failed[/] {where}: {escape(cell.error)}", soft_wrap=True)
                if verbose:
                    console.print(escape(cell.trace), soft_wrap=True)
    reasons = sum((result.reasons for result in results), Counter[str]())
    if reasons:
        console.print(_reasons(reasons))


def show_comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    """Prints how many cells and results were compared with TensorFlow's, and every difference."""
    table = Table(title="Results compared with TensorFlow's", show_footer=True)
    totals = [
        sum(one.cells for one in comparisons),
        sum(one.differing_cells for one in comparisons),
        sum(one.values for one in comparisons),
        sum(len(one.differences) for one in comparisons),
    ]
    table.add_column("notebook", footer="total")
    for name, total in zip(("cells compared", "cells that differ", "results", "differences"), totals, strict=True):
        table.add_column(name, justify="right", footer=str(total))
    for one in comparisons:
        counts = (one.cells, one.differing_cells, one.values, len(one.differences))
        table.add_row(escape(one.name), *map(str, counts))
    console.print(table)
    for one in comparisons:
        for difference in one.differences:
            where = f"[bold]{escape(difference.notebook)}[/] cell {difference.cell}, {escape(difference.where)}"
            pair = (_numbers(difference.ours), _numbers(difference.theirs))
            console.print(f"[red]differs[/] {where}: {pair[0]}, TensorFlow {pair[1]}", soft_wrap=True, highlight=False)


def _numbers(observed: Observation) -> str:
    numbers = ", ".join("nan" if one is None else f"{one:.6g}" for one in observed["numbers"][:6])
    return escape(f"{tuple(observed['shape'])} [{numbers}{', ...' if len(observed['numbers']) > 6 else ''}]")


def _summary(results: Sequence[NotebookResult]) -> Table:
    table = Table(title="Cells per notebook", show_footer=True)
    totals = [
        sum(len(result.cells) for result in results),
        *(sum(result.count(status) for result in results) for status in ("passed", "failed", "out of scope")),  # type: ignore[arg-type]
    ]
    in_scope = totals[1] + totals[2]
    rate = f"{totals[1] / in_scope:.1%} of {in_scope} in scope" if in_scope else ""
    table.add_column("notebook", footer=f"total: {rate}")
    names = ("cells", "passed", "failed", "out of scope", "seconds")
    seconds = sum(cell.seconds for result in results for cell in result.cells)
    for name, total in zip(names, [*totals, round(seconds)], strict=True):
        table.add_column(name, justify="right", footer=str(total))
    for result in results:
        failed = result.count("failed")
        table.add_row(
            escape(result.name),
            str(len(result.cells)),
            str(result.count("passed")),
            f"[red]{failed}[/]" if failed else "0",
            str(result.count("out of scope")),
            f"{sum(cell.seconds for cell in result.cells):.0f}",
        )
    return table


def _reasons(reasons: Counter[str]) -> Table:
    table = Table(title="Out of scope")
    table.add_column("reason")
    table.add_column("cells", justify="right")
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(escape(reason), str(count))
    return table
