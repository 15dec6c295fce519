"""The report: tables of target, measurement and result, from the figures of the sections."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import plots
from ratios import Ratio, ratio
from spec import WORKLOADS

Figures = dict[str, Any]
NAMES = {
    "jax_hand_written": "hand-written JAX",
    "mirrored_compiled": "mirrored",
    "mirrored_deterministic": "mirrored, deterministic",
    "mirrored_many_steps": "mirrored, 10 steps per call",
    "mirrored_eager": "mirrored, eager",
    "keras_data_parallel": "Keras DataParallel",
    "tensorflow_mirrored": "TensorFlow",
    "torch_ddp": "PyTorch DDP",
}


def write_report(results: Path, folder: Path) -> Path:
    """Writes the report of all figures in `results`, with its plots; returns its path."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}_{hardware().replace(' ', '-')}"
    text = [f"# Benchmarks, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {hardware()}", "", versions(), "", _METHOD]
    notes = folder / f"{name}.notes.md"
    if notes.exists():
        text += ["", notes.read_text().strip()]
    for section, make in _SECTIONS.items():
        if section in found:
            text += ["", *make(found[section])]
    for file, title in plots.draw(found, folder, name):
        text += ["", f"![{title}]({file})"]
    path = folder / f"{name}.md"
    path.write_text("\n".join(text) + "\n")
    return path


_METHOD = (
    "Absolute times on a shared machine are unreliable: every ratio compares contenders that alternate round by "
    "round. It is the median of the rounds' ratios with a 95 % interval by ranks. Hand-written JAX, mirrored and its "
    "deterministic mode run in one process; the others each run in a separate process, driven over a pipe. "
    '"Within the spread": the target is inside the interval, so the run does not decide.'
)


def hardware() -> str:
    """Describes the machine in general words."""
    machine = platform.machine().replace("_", "-").replace("AMD64", "x86-64")
    return os.environ.get("BENCH_HARDWARE") or f"{os.cpu_count()} cores {machine}"


def versions() -> str:
    """Describes the measured versions."""
    found = [f"Python {platform.python_version()}"]
    for package in ("jax", "jaxlib", "keras", "numpy", "optax", "mirrored"):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found) + "; peers: TensorFlow 2.21.0, PyTorch 2.13.0."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Formats a Markdown table."""
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


# Steps


def steps(figures: Figures) -> list[str]:
    """Formats steady steps of all contenders, then the targets."""
    cells = {(c["workload"], c["devices"], c["contender"]): c for c in figures["cells"]}
    text: list[str] = ["## Steps"]
    for workload in sorted({key[0] for key in cells}):
        devices = sorted({key[1] for key in cells if key[0] == workload})
        text += ["", f"### {workload}: {WORKLOADS[workload].title}", "", "Milliseconds per step (median):", ""]
        names = [name for name in NAMES if any((workload, n, name) in cells for n in devices)]
        rows = [[NAMES[name], *(_milliseconds(cells.get((workload, n, name))) for n in devices)] for name in names]
        text += table(["", *(f"{n} device{'s' * (n > 1)}" for n in devices)], rows)
    return [*text, "", *targets(cells), "", *_programs(cells)]


def _milliseconds(cell: Figures | None) -> str:
    if cell is None:
        return ""
    return "not run" if "skipped" in cell else f"{1e3 * statistics.median(cell['seconds']):.3g}"


def _compared(cells: dict[Any, Figures], workload: str, n: int, ours: str, theirs: str) -> Ratio | None:
    pair = [cells.get((workload, n, name), {}).get("seconds") for name in (ours, theirs)]
    return ratio(*pair) if all(pair) else None  # type: ignore[arg-type]


def targets(cells: dict[Any, Figures]) -> list[str]:
    """Formats each target on steps: measured, met."""
    contests = [("mirrored_compiled", "jax_hand_written", None)]
    contests += [
        ("mirrored_deterministic", "mirrored_compiled", 1.10),
        ("mirrored_many_steps", "jax_hand_written", 0.8),
    ]
    contests += [("mirrored_compiled", "tensorflow_mirrored", 1.0), ("mirrored_compiled", "torch_ddp", 1.0)]
    contests += [("mirrored_compiled", "keras_data_parallel", 1.0)]
    text: list[str] = []
    for ours, theirs, target in contests:
        rows = []
        for workload, n in sorted({key[:2] for key in cells}):
            found = _compared(cells, workload, n, ours, theirs)
            if found is None or (ours == "mirrored_deterministic" and workload == "W1"):
                continue
            wanted = WORKLOADS[workload].target if target is None else target
            rows.append([workload, str(n), f"{wanted:.2f}", str(found), found.met(wanted)])
        if rows:
            text += ["", f"**{NAMES[ours]} / {NAMES[theirs]}**", ""]
            text += table(["workload", "devices", "target", "measured", "met"], rows)
    return text[1:]


def _programs(cells: dict[Any, Figures]) -> list[str]:
    rows = []
    for workload, n in sorted({key[:2] for key in cells}):
        ours, hand = (cells.get((workload, n, name), {}) for name in ("mirrored_compiled", "jax_hand_written"))
        if "program_mib" in ours and "program_mib" in hand:
            rows.append(
                [
                    workload,
                    str(n),
                    f"{ours['all_reduces']} / {hand['all_reduces']}",
                    str(ours["traces"]),
                    f"{ours['program_mib']:.1f} / {hand['program_mib']:.1f}",
                    f"{1e6 * ours['dispatch_seconds']:.0f} / {1e6 * hand['dispatch_seconds']:.0f}",
                ]
            )
    head = ["workload", "devices", "all-reduces", "traces of the replica's function"]
    return [
        "**The compiled programs, mirrored / hand-written JAX** (memory per device; time until a call returns)",
        "",
        *table([*head, "MiB", "dispatch us"], rows),
    ]


# Other sections


def first_step(figures: Figures) -> list[str]:
    """Formats the first step against the number of replicas."""
    lines = figures["lines"]

    def best(contender: str, replicas: int, what: str) -> float | None:
        found = [one[what] for one in lines if (one["contender"], one["replicas"]) == (contender, replicas)]
        return statistics.median(found) if found else None

    names = [name for name in NAMES if any(one["contender"] == name for one in lines)]
    counts = sorted({one["replicas"] for one in lines})
    rows = []
    for what, unit in (("seconds", "s"), ("second_call_seconds", "s"), ("peak_mib", "MiB")):
        for name in names:
            values = [best(name, n, what) for n in counts]
            label = {"seconds": "first step", "second_call_seconds": "second call", "peak_mib": "peak memory"}[what]
            rows.append([f"{label}, {NAMES[name]} ({unit})", *("" if v is None else f"{v:.3g}" for v in values)])
    text = ["## First step: trace, compile, run", "", f"{WORKLOADS[figures['workload']].title}; medians.", ""]
    text += table(["", *(f"{n} replica{'s' * (n > 1)}" for n in counts)], rows)
    met = []
    for n in counts:
        pair = best("mirrored_compiled", n, "seconds"), best("jax_hand_written", n, "seconds")
        if None not in pair:
            met.append([f"{n} replicas, mirrored / hand-written JAX", "1.10", _plain(pair[0], pair[1], 1.10)])
    one, many = (best("mirrored_compiled", n, "seconds") for n in (1, 32))
    if one and many:
        met.append(["mirrored, 32 replicas / 1 replica", "1.25", _plain(many, one, 1.25)])
    return [*text, "", *table(["", "target", "measured, met"], met)]


def _plain(ours: Any, theirs: Any, target: float) -> str:
    return f"{ours / theirs:.2f}, {'yes' if ours / theirs <= target else 'no'}"


def memory(figures: Figures) -> list[str]:
    """Formats peak resident memory."""
    lines = figures["lines"]
    workloads = sorted({one["workload"] for one in lines})
    by = {(one["contender"], one["workload"]): one["peak_mib"] for one in lines}
    names = [name for name in NAMES if any(name == one["contender"] for one in lines)]
    rows = [[NAMES[name], *(f"{by[name, w]:.0f}" if (name, w) in by else "" for w in workloads)] for name in names]
    note = "The process of rank 0 alone for PyTorch. mirrored adds its modules and optax to hand-written JAX."
    return [
        f"## Peak resident memory on {figures['devices']} devices (MiB)",
        "",
        note,
        "",
        *table(["", *workloads], rows),
    ]


def eager(figures: Figures) -> list[str]:
    """Formats the eager tape."""
    names = {**NAMES, "mirrored_compiled": "mirrored, mirrored.tf operations", "jax_hand_written": "un-jitted jax.grad"}
    names["mirrored_eager"] = "mirrored, jnp functions"
    rows = [[names[name], f"{1e6 * statistics.median(seconds):.1f}"] for name, seconds in figures.items()]
    text = ["## Eager tape, per operation, forward plus backward (us)", "", *table(["", "us"], rows)]
    met = []
    for theirs, target in (("tensorflow_mirrored", 0.5), ("jax_hand_written", 0.35), ("torch_ddp", None)):
        if theirs in figures and "mirrored_compiled" in figures:
            found = ratio(figures["mirrored_compiled"], figures[theirs])
            name = "un-jitted jax.grad" if theirs == "jax_hand_written" else NAMES[theirs]
            met.append([f"mirrored / {name}", *(("none", str(found), "") if target is None
                        else (f"{target:.2f}", str(found), found.met(target)))])  # fmt: skip
    return [*text, "", *table(["", "target", "measured", "met"], met)]


def all_reduce(figures: Figures) -> list[str]:
    """Formats the all-reduce alone."""
    by = {(c["mib"], c["devices"], c["contender"]): statistics.median(c["seconds"]) for c in figures["cells"]}
    columns = sorted({key[:2] for key in by})
    names = [name for name in NAMES if any(key[2] == name for key in by)]
    rows = [[NAMES[n], *(f"{1e3 * by[(*c, n)]:.3g}" if (*c, n) in by else "" for c in columns)] for n in names]
    head = ["", *(f"{mib} MiB, {n}" for mib, n in columns)]
    return ["## All-reduce alone (ms; size of one replica's buffer, devices)", "", *table(head, rows)]


def reading(figures: Figures) -> list[str]:
    """Input."""
    rows = []
    for name, found in figures.items():
        if isinstance(found, dict):
            low, high = found["interval"]
            measured = f"{found['ratio']:.2f} ({low:.2f} to {high:.2f})"
            rows.append([f"{name}: batches/s over a loop of device_put", "0.90", measured,
                         "yes" if found["ratio"] >= 0.9 else "no"])  # fmt: skip
        else:
            rows.append([f"{name}: step / loop", "0.95", f"{found:.3f}", "yes" if found >= 0.95 else "no"])
    return ["## Input", "", *table(["", "target (at least)", "measured", "met"], rows)]


def checkpoint(figures: Figures) -> list[str]:
    """Formats the checkpoint stall."""
    background, loop = (1e3 * statistics.median(figures["seconds"][k]) for k in ("in_background", "in_the_loop"))
    return [
        "## Checkpoint stall",
        "",
        f"{WORKLOADS[figures['workload']].title}, parameters and two slots each, {figures['devices']} devices: a save "
        f"stalls the loop for {background:.1f} ms; `numpy.savez` in the loop stalls it for {loop:.1f} ms; "
        f"ratio {figures['ratio']:.3f}.",
    ]


def start_up(figures: Figures) -> list[str]:
    """Start-up."""
    jax, ours, bare, command = (
        statistics.median(figures[key]) for key in ("import_jax", "import_mirrored", "interpreter", "help")
    )
    rows = [
        ["`import mirrored` after `import jax`", "0.15 s", f"{ours:.3f} s", "yes" if ours <= 0.15 else "no"],
        ["`import jax`", "", f"{jax:.3f} s", ""],
        ["`mirrored --help`, minus a bare interpreter", "", f"{command - bare:.3f} s", ""],
    ]
    return ["## Start-up", "", *table(["", "target", "measured", "met"], rows)]


def planning(figures: Figures) -> list[str]:
    """Formats `mirrored plan` against measurements."""
    rows = [
        [one["workload"], str(one["devices"]), f"{1e3 * one['predicted']:.3g}", f"{1e3 * one['measured']:.3g}",
         f"{one['predicted'] / one['measured']:.2f}", one["bottleneck"]]
        for one in figures["points"]
    ]  # fmt: skip
    head = ["workload", "devices", "predicted ms", "measured ms", "predicted / measured", "bottleneck named"]
    text = (
        "Predicted from a step on one device: one replica's program, run by all devices at once without its "
        "all-reduces, plus what all-reduces add to another program, plus its launch. Devices share the machine's cores."
    )
    return ["## `mirrored plan` against measurement", "", text, "", *table(head, rows)]


def jax_versions(figures: Figures) -> list[str]:
    """Formats the newest JAX against the previous one, per workload."""
    cells = {(c["workload"], c["devices"], c["contender"], c["jax"]): c for c in figures["cells"]}
    versions = list(dict.fromkeys(c["jax"] for c in figures["cells"]))
    if len(versions) != 2:
        return []
    newest, previous = versions
    rows = []
    for workload, n in sorted({key[:2] for key in cells}):
        row = [workload, str(n)]
        for name in ("jax_hand_written", "mirrored_compiled"):
            pair = [cells.get((workload, n, name, version)) for version in versions]
            row.append(str(ratio(pair[0]["seconds"], pair[1]["seconds"])) if all(pair) else "not run")  # type: ignore[index]
            row.append("/".join(f"{one['first_seconds']:.2f}" if one else "not run" for one in pair))
        rows.append(row)
    head = ["workload", "devices"]
    for name in ("hand-written", "mirrored"):
        head += [f"{name}: step {newest} / {previous}", f"{name}: first step (s), {newest}/{previous}"]
    text = "The same programs on both versions, in separate processes, timed in turn; below 1 the newest is faster."
    return [f"## JAX {newest} against JAX {previous}", "", text, "", *table(head, rows)]


_SECTIONS = {
    "steps": steps,
    "first_step": first_step,
    "memory": memory,
    "eager": eager,
    "all_reduce": all_reduce,
    "reading": reading,
    "checkpoint": checkpoint,
    "start_up": start_up,
    "planning": planning,
    "jax_versions": jax_versions,
}
