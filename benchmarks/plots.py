"""Draws the report's plots. Without matplotlib there are none."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_COLOURS = {
    "jax_hand_written": ("hand-written JAX", "0.35", "s"),
    "mirrored_compiled": ("mirrored", "tab:blue", "o"),
    "mirrored_deterministic": ("mirrored, deterministic", "tab:cyan", "^"),
    "keras_data_parallel": ("Keras DataParallel", "tab:red", "v"),
    "tensorflow_mirrored": ("TensorFlow", "tab:orange", "D"),
    "torch_ddp": ("PyTorch DDP", "tab:purple", "P"),
}


def draw(found: dict[str, Any], folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yields file names and titles of the plots for which there are figures."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    if "steps" in found:
        yield _steps(found["steps"]["cells"], folder / f"{name}_steps.png"), "step time against devices"
    if "first_step" in found:
        lines = found["first_step"]["lines"]
        yield _first(lines, folder / f"{name}_first_step.png"), "first step against replicas"


def _steps(cells: list[dict[str, Any]], path: Path) -> str:
    from matplotlib import pyplot

    workloads = sorted({cell["workload"] for cell in cells})
    figure, axes = pyplot.subplots(1, len(workloads), figsize=(4 * len(workloads), 3.6), squeeze=False)
    for axis, workload in zip(axes[0], workloads, strict=True):
        for contender, (label, colour, marker) in _COLOURS.items():
            points = sorted(
                (cell["devices"], 1e3 * statistics.median(cell["seconds"]))
                for cell in cells
                if (cell["workload"], cell["contender"]) == (workload, contender) and cell.get("seconds")
            )
            if points:
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, label=label, markersize=5)
        _logarithmic(axis, [cell["devices"] for cell in cells])
        axis.set(title=workload, xlabel="devices", ylabel="ms per step")
    axes[0][0].legend(fontsize=7)
    return _saved(figure, path)


def _first(lines: list[dict[str, Any]], path: Path) -> str:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 3.6))
    for contender, (label, colour, marker) in _COLOURS.items():
        counts = sorted({line["replicas"] for line in lines if line["contender"] == contender})
        values = [
            statistics.median(
                line["seconds"] for line in lines if (line["contender"], line["replicas"]) == (contender, n)
            )
            for n in counts
        ]
        if counts:
            axis.plot(counts, values, color=colour, marker=marker, label=label, markersize=5)
    _logarithmic(axis, [line["replicas"] for line in lines])
    axis.set(xlabel="replicas", ylabel="s", title="first step (trace, compile, run)")
    axis.legend(fontsize=8)
    return _saved(figure, path)


def _logarithmic(axis: Any, counts: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks(_plain)
    axis.set_xticks(sorted(set(counts)), [str(n) for n in sorted(set(counts))])
    axis.grid(alpha=0.3)


def _plain(value: float, place: int) -> str:
    """Formats 1 to 6 times a power of ten; other labels stay empty, because they are too dense."""
    del place
    text = f"{value:g}"
    return text if text.replace(".", "").strip("0") in ("1", "2", "3", "4", "5", "6") else ""


def _saved(figure: Any, path: Path) -> str:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path.name
