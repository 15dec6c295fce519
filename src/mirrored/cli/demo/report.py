"""Writes the report of the demo: configuration, results, and checked properties."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np

from mirrored.cli.demo.copies import Copies
from mirrored.cli.demo.digits import Examples
from mirrored.cli.demo.history import History
from mirrored.cli.demo.pictures import draw_losses, draw_predictions
from mirrored.cli.demo.training import BATCH_SIZE
from mirrored.topology.device_assignment import DeviceAssignment


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of the demo.

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
        """The number of correct predictions; 0 if the predictions do not match the test images one to one."""
        return int((self.digits == self.test.labels).sum()) if len(self.digits) == len(self.test) else 0

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions."""
        return self.num_right / len(self.test)

    @property
    def copies_are_equal(self) -> bool:
        """Whether the copies of every variable are bit-identical."""
        return all(one.are_equal for one in self.copies)

    @property
    def bits_are_equal(self) -> bool:
        """Whether the final weights of the deterministic trainings are bit-identical."""
        return len(set(self.hashes.values())) == 1


def write_report(findings: Findings, folder: Path) -> list[Path]:
    """Writes ``loss.png``, ``predictions.png`` and ``summary.md``; returns their paths."""
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
