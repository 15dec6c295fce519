"""Runs the demo from start to end, and prints its progress and results."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import click
import jax
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import mirrored as mr
from mirrored.cli.demo.copies import Copies, copies_of, hash_variables
from mirrored.cli.demo.digits import Batches, Examples, load_digits
from mirrored.cli.demo.report import Findings, write_report
from mirrored.cli.demo.training import BATCH_SIZE, History, Trainer
from mirrored.topology.device_assignment import default_devices, make_device_assignment

MUST_BE_RIGHT = 0.97


def run_demo(*, num_replicas: int, epochs: int, out: Path, must_learn: bool, as_json: bool = False) -> Findings:
    """Runs the demo: trains and evaluates a network, checks that all replicas agree, and writes a report.

    Args:
        num_replicas: The number of replicas of the model.
        epochs: The number of epochs.
        out: The folder of the report.
        must_learn: Whether an accuracy below 97 % is a failure.
        as_json: Whether to print the results as JSON, and the progress on standard error.

    Raises:
        ClickException: A property that the demo checks does not hold.
    """
    started, console = time.perf_counter(), Console(stderr=as_json)
    devices = _devices_for(num_replicas)
    train, test = load_digits()
    strategy = mr.MirroredStrategy(devices, num_replicas=num_replicas)
    console.rule(f"[bold]{num_replicas} replicas on {len(devices)} devices")
    console.print(f"{len(train)} training images, {len(test)} test images, global batch {BATCH_SIZE}")

    trainer = Trainer(strategy)
    history = _train(trainer, train, epochs, "training", console)
    digits = trainer.predict_all(test)
    copies = copies_of(strategy, trainer.model.variables)
    _show_evaluation(console, test, int((digits == test.labels).sum()), num_replicas)
    _show_copies(console, copies)

    hashes = _train_deterministically(num_replicas, devices, train, epochs, console)
    seconds = time.perf_counter() - started
    device_assignment = make_device_assignment(devices, num_replicas)
    findings = Findings(device_assignment, history, test, digits, copies, hashes, seconds)
    console.rule("[bold]Report")
    written = write_report(findings, out)
    for path in written:
        console.print(f"wrote {path}")
    console.print(f"{seconds:.0f} seconds in total")
    if as_json:
        print(json.dumps({**as_data(findings), "files": [str(path) for path in written]}, indent=1))
    _check(findings, must_learn)
    return findings


def as_data(findings: Findings) -> dict[str, object]:
    """Converts the results of the demo to JSON-serializable data."""
    return {
        "replicas": findings.device_assignment.num_replicas,
        "devices": findings.device_assignment.num_devices,
        "losses": [float(loss) for loss in findings.history.losses],
        "test_examples": len(findings.test),
        "accuracy": findings.accuracy,
        "copies_are_equal": findings.copies_are_equal,
        "hashes_by_number_of_devices": {str(count): digest for count, digest in findings.hashes.items()},
        "bits_are_equal": findings.bits_are_equal,
        "seconds": findings.seconds,
    }


def _devices_for(num_replicas: int) -> list[jax.Device]:
    """Returns `num_replicas` devices (virtual CPU devices if JAX has not started), or all devices if fewer exist."""
    try:
        mr.config.set_virtual_devices(num_replicas)
    except mr.errors.ContextError:
        pass  # JAX has started: use its devices, with several replicas on each if necessary
    return default_devices()[:num_replicas]


def _train(trainer: Trainer, train: Examples, epochs: int, title: str, console: Console) -> History:
    """Trains with a live progress bar, and prints a line for each epoch."""
    steps = len(Batches(train, BATCH_SIZE))
    columns = ("{task.description}", "epoch {task.fields[epoch]}", "loss {task.fields[loss]:.4f}")
    progress = Progress(
        *map(TextColumn, columns), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]:,.0f} images/s"),
        TimeElapsedColumn(), console=console, transient=True,
    )  # fmt: skip
    with progress:
        task = progress.add_task(title, total=epochs * steps, epoch=1, loss=0.0, rate=0.0)

        def on_step(epoch: int, loss: float, images_per_second: float) -> None:
            progress.update(task, advance=1, epoch=epoch, loss=loss, rate=images_per_second)
            if progress.tasks[0].completed % steps == 0:
                line = f"{title}: epoch {epoch:2d} of {epochs}   loss {loss:.4f}   {images_per_second:8,.0f} images/s"
                console.print(line + "   (compiles)" * (epoch == 1), highlight=False, soft_wrap=True)

        return trainer.train(train, epochs, on_step)


def _train_deterministically(
    num_replicas: int, devices: list[jax.Device], train: Examples, epochs: int, console: Console
) -> dict[int, str]:
    """Repeats one training run on 1, 2, 4, ... and all devices, and returns a hash of the final weights of each run."""
    console.rule("[bold]Bitwise reproducible on any number of devices")
    hashes: dict[int, str] = {}
    for count in (n for n in range(1, len(devices) + 1) if num_replicas % n == 0 or n == len(devices)):
        strategy = mr.MirroredStrategy(devices[:count], num_replicas=num_replicas, deterministic=True)
        trainer = Trainer(strategy)
        history = trainer.train(train, epochs, lambda *_: None)
        hashes[count] = hash_variables(trainer.model.variables)
        console.print(
            f"deterministic=True, {num_replicas} replicas on {count} device{'s' * (count > 1)}: final weights "
            f"[bold]{hashes[count]}[/]   {sum(history.epoch_seconds):.0f} s",
            highlight=False,
            soft_wrap=True,
        )
    same = len(set(hashes.values())) == 1
    console.print("[green]bitwise equal[/]" if same else "[red]NOT bitwise equal[/]")
    return hashes


def _show_evaluation(console: Console, test: Examples, num_right: int, num_replicas: int) -> None:
    console.rule("[bold]Evaluation")
    full, last = divmod(len(test), BATCH_SIZE)
    console.print(
        f"{len(test)} test images, each seen exactly once: {full} batches of {BATCH_SIZE} and one of {last} "
        f"over {num_replicas} replicas\n[bold]{num_right / len(test):.2%} right[/] ({num_right} of {len(test)})",
        highlight=False,
        soft_wrap=True,
    )


def _show_copies(console: Console, copies: list[Copies]) -> None:
    console.rule("[bold]Copies of every variable")
    table = Table("variable", "shape", "SHA-256 of the replicas' copies", "equal", box=SIMPLE)
    for one in copies:
        equal = "[green]bit-identical[/]" if one.are_equal else "[red]NO[/]"
        counted = ", ".join(f"{digest} x {count}" for digest, count in Counter(one.hashes).items())
        table.add_row(one.name, str(list(one.shape)), counted, equal)
    console.print(table, highlight=False)


def _check(findings: Findings, must_learn: bool) -> None:
    failures = [
        (len(findings.digits) == len(findings.test), "not every test image was evaluated exactly once"),
        (findings.copies_are_equal, "copies of a variable differ between replicas"),
        (findings.bits_are_equal, "the final weights of the deterministic training runs are not bit-identical"),
        (
            findings.accuracy >= MUST_BE_RIGHT or not must_learn,
            f"only {findings.accuracy:.2%} of the test images right",
        ),
    ]
    found = [message for held, message in failures if not held]
    if found:
        raise click.ClickException("; ".join(found))
