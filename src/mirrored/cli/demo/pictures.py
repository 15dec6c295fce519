"""The figures of the report: the loss over the steps, and test images with their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mirrored.cli.demo.digits import Examples
from mirrored.cli.demo.history import History
from mirrored.extras import load

_BLUE, _RED, _GREY = "#2563eb", "#dc2626", "#9ca3af"
_COLUMNS, _ROWS = 10, 4


def draw_losses(history: History, title: str, path: Path) -> None:
    """Plots the loss of every step and the mean of every epoch, on a logarithmic scale."""
    figure, axes = _pyplot().subplots(figsize=(8, 4.5), dpi=120)
    steps = np.arange(1, len(history.losses) + 1)
    axes.plot(steps, history.losses, color=_GREY, linewidth=0.9, label="each step")
    per_epoch = np.array(history.losses).reshape(-1, history.steps_per_epoch)
    centres = (np.arange(len(per_epoch)) + 0.5) * history.steps_per_epoch + 0.5
    axes.plot(centres, per_epoch.mean(axis=1), color=_BLUE, marker="o", linewidth=2, label="mean of each epoch")
    axes.set(title=title, xlabel="step", ylabel="loss (cross entropy)", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    _save(figure, path)


def draw_predictions(examples: Examples, digits: np.ndarray, path: Path) -> None:
    """Draws a page of test images with their predicted digits; wrong predictions come first, in red."""
    wrong = np.flatnonzero(digits != examples.labels)
    right = np.flatnonzero(digits == examples.labels)
    chosen = np.concatenate([wrong, right])[: _COLUMNS * _ROWS]
    figure, grid = _pyplot().subplots(_ROWS, _COLUMNS, figsize=(10, 5.3), dpi=120)
    for axes in grid.flat:
        axes.axis("off")
    for axes, index in zip(grid.flat, chosen, strict=False):
        seen, label = int(digits[index]), int(examples.labels[index])
        axes.imshow(examples.images[index, :, :, 0], cmap="gray_r", vmin=0, vmax=1)
        caption = f"{seen}" if seen == label else f"{seen}, is {label}"
        axes.set_title(caption, fontsize=11, color=_BLUE if seen == label else _RED)
    figure.suptitle(f"{len(wrong)} of {len(digits)} test images predicted wrongly (red, first)")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path)
    _pyplot().close(figure)


def _pyplot() -> Any:
    load("matplotlib", called="mirrored demo", extra="demo").use("Agg")  # no display needed
    return load("matplotlib.pyplot", called="mirrored demo", extra="demo")
