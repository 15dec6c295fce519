"""The program that `mirrored doctor` starts on every worker: checks the machines, and prints their faults."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from mirrored._jax import distributed
from mirrored.cli.doctor.facts import Facts, local_facts
from mirrored.cli.doctor.findings import findings
from mirrored.cli.doctor.gpus import describe, unverified
from mirrored.cli.doctor.links import Link, measure, neighbours
from mirrored.cluster.joining import join
from mirrored.cluster.tasks import process_of
from mirrored.cluster.tf_config import TFConfigClusterResolver
from mirrored.collectives.host_allgather import host_allgather, host_barrier
from mirrored.errors import MirroredError

_CALLED = "mirrored doctor"


def main() -> None:
    """Checks this worker's machine together with all other workers; worker 0 exits with status 1 if it finds faults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--json", help="file for the findings as JSON; - for standard output")
    options = parser.parse_args()
    try:
        wrong = examine(options.checkpoints, options.json)
    except MirroredError as error:
        print(f"mirrored doctor: {error}", file=sys.stderr)
        sys.exit(1)
    if wrong and jax.process_index() == 0:
        sys.exit(1)


def examine(folder: Path | None, json_path: str | None = None) -> list[str]:
    """Compares the machines of all workers, measures all-reduces between the workers, and prints the faults.

    Args:
        folder: The folder for checkpoints; None to skip the check of the disk.
        json_path: The file to which worker 0 writes the findings as JSON, ``-`` for standard output; None to print
            tables.

    Returns:
        The findings, the same on all workers.
    """
    process = process_of(TFConfigClusterResolver())
    start = time.monotonic()
    if process is not None:
        join(process, _CALLED)
    rendezvous = time.monotonic() - start
    workers = _all_facts(folder)
    links = _all_links()
    error = max((link.latency_seconds for link in links), default=0.0)
    wrong = findings(workers, [link for link in links if len(link.workers) == 2], error)
    coordinator = process.coordinator if process is not None else None
    if jax.process_index() == 0 and json_path is None:
        _print(workers, links, rendezvous, coordinator, wrong)
    elif jax.process_index() == 0:
        text = json.dumps(as_data(workers, links, rendezvous, coordinator, wrong), indent=1)
        print(text) if json_path == "-" else Path(str(json_path)).write_text(text, encoding="utf-8")
    return wrong


def as_data(
    workers: Sequence[Facts], links: Sequence[Link], rendezvous: float, coordinator: str | None, wrong: Sequence[str]
) -> dict[str, Any]:
    """Converts the findings to JSON-serializable data."""
    return {
        "workers": [one.to_json() for one in workers],
        "links": [dataclasses.asdict(link) for link in links],
        "coordinator": coordinator,
        "rendezvous_seconds": rendezvous if coordinator is not None else None,
        "wrong": list(wrong),
    }


def _all_facts(folder: Path | None) -> list[Facts]:
    together = distributed.is_connected()
    token = f".mirrored-doctor-{uuid.uuid4().hex[:8]}"
    token = host_allgather(_CALLED, "name a file", token)[0] if together else token
    trouble: str | None = None
    if folder is not None and jax.process_index() == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / token).touch()
        except OSError as error:  # the other workers wait: it is a finding, and does not end this one
            trouble = f"{folder} cannot be written: {error.strerror or error}"
    # If worker 0 cannot write, its file is missing everywhere, which does not say whether the folder is shared.
    first = host_allgather(_CALLED, "see the folder for checkpoints", trouble or "")[0] if together else trouble
    try:
        own = local_facts(None if first else folder, token)
        own = dataclasses.replace(own, trouble=trouble or own.trouble)
        if not together:
            return [own]
        host_barrier(_CALLED, "compare clocks")
        own = dataclasses.replace(own, clock=time.time())
        return [Facts.from_json(facts) for facts in host_allgather(_CALLED, "report its facts", own.to_json())]
    finally:
        if folder is not None and jax.process_index() == 0:
            with contextlib.suppress(OSError):
                (folder / token).unlink(missing_ok=True)


def _all_links() -> list[Link]:
    """Measures all-reduces between neighbouring workers, one pair at a time, then over the devices of all workers."""
    first: dict[int, jax.Device] = {}
    for device in sorted(jax.devices(), key=lambda device: (device.process_index, device.id)):
        first.setdefault(device.process_index, device)
    measured: list[Any] = []
    for pair in neighbours(len(first)):
        link = measure(pair, [first[worker] for worker in pair])
        if distributed.is_connected():
            gathered = host_allgather(
                _CALLED, f"measure the link {pair}", None if link is None else dataclasses.asdict(link)
            )
            measured.append(gathered[pair[0]])
    links = [Link(**{**fields, "workers": tuple(fields["workers"])}) for fields in measured]
    if len(jax.devices()) > 1 and len(first) != 2:
        whole = measure(tuple(first), sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
        links += [] if whole is None else [whole]
    return links


def _print(
    workers: Sequence[Facts], links: Sequence[Link], rendezvous: float, coordinator: str | None, wrong: Sequence[str]
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 110)
    table = Table("worker", "host", "devices", "cores", "clock", "free disk", "disk writes")
    for rank, one in enumerate(workers):
        clock = f"{one.clock - workers[0].clock:+.3f} s" if len(workers) > 1 else "-"
        free = "-" if one.free_bytes is None else f"{one.free_bytes / 2**30:.1f} GiB"
        speed = "-" if one.write_bytes_per_second is None else f"{one.write_bytes_per_second / 2**20:.0f} MiB/s"
        table.add_row(str(rank), one.host, f"{one.devices} {one.kind}", str(one.cores), clock, free, speed)
    console.print(table)
    versions = {name.removeprefix("the version of "): value for name, value in workers[0].versions.items()}
    console.print(", ".join(f"{name} {versions[name]}" for name in ("mirrored", "jax", "jaxlib", "numpy", "Python")))
    if coordinator is not None:
        console.print(f"rendezvous at {coordinator}: {rendezvous:.2f} s")
    if links:
        measured = Table("all-reduce between", "latency", "bandwidth (4 MiB per device)")
        for link in links:
            who = "all devices" if len(link.workers) != 2 else f"workers {link.workers[0]} and {link.workers[1]}"
            measured.add_row(who, f"{link.latency_seconds * 1e6:.0f} us", f"{link.bytes_per_second / 2**20:.0f} MiB/s")
        console.print(measured)
    _print_gpus(console, workers)
    for text in wrong:
        console.print(f"[bold red]WRONG[/] {text}", highlight=False)
    if not wrong:
        console.print("no problems were found")


def _print_gpus(console: Console, workers: Sequence[Facts]) -> None:
    """Prints a table of all workers' GPUs, then each worker's GPU software if it differs from the previous worker's."""
    there = [(rank, one.gpus) for rank, one in enumerate(workers) if one.gpus is not None]
    if not there:
        return
    table = Table("worker", "GPU", "driver", "memory", "MIG")
    for rank, facts in there:
        for gpu in facts.gpus:
            memory = "-" if gpu.memory_mib is None else f"{gpu.memory_mib / 1024:.0f} GiB"
            mig = {True: "on", False: "off", None: "-"}[gpu.mig]
            table.add_row(str(rank), gpu.name, gpu.driver, memory, mig)
    console.print(table)
    printed: list[str] = []
    for rank, facts in there:
        lines = describe(facts)
        if lines != printed:
            console.print(f"from worker {rank} on: " if len(there) > 1 else "", end="")
            console.print("\n".join(lines), highlight=False, markup=False)
        printed = lines
    for text in unverified([facts for _, facts in there]):
        console.print(f"unverified: {text}", highlight=False)


if __name__ == "__main__":
    main()
