"""Writes the demo's report: a Markdown summary, a plot of the loss, and images with predictions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mirrored.cli.demo.copies import Copies
from mirrored.cli.demo.digits import Examples
from mirrored.cli.demo.training import BATCH_SIZE, History
from mirrored.extras import load
from mirrored.topology.device_assignment import DeviceAssignment

# The figures of the report: the loss over the steps, and test images with their predictions.

_BLUE, _RED, _GREY = "#2563eb", "#dc2626", "#9ca3af"
_COLUMNS, _ROWS = 10, 4


def draw_losses(history: History, title: str, path: Path) -> None:
    """Plots the loss of every step and the mean loss of every epoch, on a logarithmic scale."""
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
    """Draws a page of test images with their predicted digits, wrong predictions first and in red."""
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


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of a run of the demo: training history, predictions, hashes of variables, duration.

    Attributes:
        device_assignment: The device of each replica.
        history: The history of the training.
        test: The test examples.
        digits: i32[examples], the predicted digits.
        copies: The copies of every variable.
        hashes: The hashes of the final weights with ``deterministic=True``, by number of devices.
        seconds: The duration of the whole demo.
    """

    device_assignment: DeviceAssignment
    history: History
    test: Examples
    digits: np.ndarray
    copies: list[Copies]
    hashes: dict[int, str]
    seconds: float

    @property
    def num_right(self) -> int:
        """The number of test images whose digit was predicted correctly; 0 if predictions are missing."""
        return int((self.digits == self.test.labels).sum()) if len(self.digits) == len(self.test) else 0

    @property
    def accuracy(self) -> float:
        """The fraction of test images that were predicted correctly."""
        return self.num_right / len(self.test)

    @property
    def copies_are_equal(self) -> bool:
        """Whether the copies of every variable are bit-identical on all replicas."""
        return all(one.are_equal for one in self.copies)

    @property
    def bits_are_equal(self) -> bool:
        """Whether deterministic training runs on different numbers of devices gave bit-identical final weights."""
        return len(set(self.hashes.values())) == 1


def write_report(findings: Findings, folder: Path) -> list[Path]:
    """Writes the report's files ``loss.png``, ``predictions.png`` and ``summary.md``, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    loss, predictions, summary = folder / "loss.png", folder / "predictions.png", folder / "summary.md"
    replicas = findings.device_assignment.num_replicas
    draw_losses(findings.history, f"Convnet on handwritten digits, {replicas} synchronous replicas", loss)
    draw_predictions(findings.test, findings.digits, predictions)
    summary.write_text(_summary(findings), encoding="utf-8")
    return [loss, predictions, summary]


def _summary(findings: Findings) -> str:
    history, device_assignment = findings.history, findings.device_assignment
    epochs = len(history.epoch_seconds)
    last_epoch = float(np.mean(history.losses[-history.steps_per_epoch :]))
    right = f"{findings.num_right} of {len(findings.test)} right ({findings.accuracy:.2%})"
    kind = device_assignment.devices[0].device_kind
    num_copies = f"{len(findings.copies)} variables x {device_assignment.num_replicas} replicas"
    rows = [
        ("replicas", f"{device_assignment.num_replicas} on {device_assignment.num_devices} devices ({kind})"),
        ("training", f"{epochs} epochs, {len(history.losses)} steps, global batch {BATCH_SIZE}"),
        ("loss", f"{history.losses[0]:.3f} at the first step, {last_epoch:.4f} in the last epoch"),
        ("speed", f"{history.images_per_second:,.0f} images/s"),
        ("test images", f"{right}, each seen once"),
        ("copies", f"{num_copies}: {_equal(findings.copies_are_equal)}"),
        ("whole demo", f"{findings.seconds:.0f} s with JAX {jax.__version__}"),
    ]  # fmt: skip
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    hashes = "\n".join(f"| {devices} | `{digest}` |" for devices, digest in findings.hashes.items())
    return f"""# mirrored demo

| | |
|---|---|
{table}

![loss](loss.png)

![predictions](predictions.png)

## Bitwise reproducible on any number of devices

The same training with `deterministic=True`, {device_assignment.num_replicas} replicas on each number of devices:

| devices | SHA-256 of the final weights |
|---|---|
{hashes}

The final weights are {_equal(findings.bits_are_equal)}.
"""


def _equal(equal: bool) -> str:
    return "bit-identical" if equal else "**NOT bit-identical**"
