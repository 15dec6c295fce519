"""Plots a scaling plan: the parts of the step time, and the efficiency."""

from __future__ import annotations

from pathlib import Path

from mirrored.extras import load
from mirrored.perf_model.prediction import ScalingPlan

_PARTS = (("compute_seconds", "compute", "tab:blue"), ("exchange_seconds", "exchange", "tab:orange"))


def draw(plan: ScalingPlan, path: Path) -> None:
    """Writes the plot of a plan to a file.

    Args:
        plan: The plan.
        path: The file; its suffix determines the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    module = load("matplotlib.figure", called="mirrored plan --plot", extra="plot", otherwise="omit --plot")
    figure = module.Figure(figsize=(8, 3.6), layout="constrained")
    time, efficiency = figure.subplots(1, 2)
    counts = [str(one.replicas) for one in plan.predictions]
    below = [0.0] * len(counts)
    for name, label, colour in _PARTS:
        heights = [1e3 * getattr(one, name) for one in plan.predictions]
        time.bar(counts, heights, bottom=below, label=label, color=colour)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    host = [1e3 * one.host_seconds for one in plan.predictions]
    time.plot(counts, host, "k_", markersize=18, label="host (overlapped)")
    time.set(xlabel="replicas", ylabel="ms", title=f"step time (fixed {plan.keeps.replace('-', ' ')})")
    time.legend(fontsize=8)
    efficiency.plot(counts, [one.efficiency for one in plan.predictions], "o-")
    efficiency.set(xlabel="replicas", title="efficiency", ylim=(0, 1.05))
    efficiency.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
