"""One step of W5 under JAX's profiler: time in kernels, copies and gaps, the longest kernels, for both contenders."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from contenders import jax_hand_written, mirrored_training
from contenders.job import Job
from spec import workload

from gpu.fitting import SCRATCH_VARIABLE
from gpu.recording import Recorder

STEPS = 3
_TOP = 12
_COPY = re.compile(r"memcpy|memset|copy", re.IGNORECASE)
Event = dict[str, Any]


def measure(recorder: Recorder) -> None:
    """Mirrored's trace is kept for the driver, which brings it back if it fits."""
    for title, make in (("mirrored", mirrored_training.train), ("hand-written JAX", jax_hand_written.train)):
        with recorder.variant(f"W5, {title}") as figures:
            job = make(workload("W5"), 1)
            for _ in range(3):
                job.call()
            with tempfile.TemporaryDirectory() as folder:
                trace = traced(job, Path(folder))
                figures |= summary(events_of(trace))
                scratch = os.environ.get(SCRATCH_VARIABLE)
                if scratch and title == "mirrored":
                    shutil.copy(trace, Path(scratch) / "trace.json.gz")
            del job


def traced(job: Job, folder: Path) -> Path:
    """The trace of some steps in a row."""
    launch, wait = job.launch, job.wait
    assert launch is not None
    assert wait is not None
    with jax.profiler.trace(str(folder)):
        for _ in range(STEPS):
            result = launch()
        wait(result)
    return next(folder.rglob("*.trace.json.gz"))


def events_of(trace: Path) -> list[Event]:
    """What ran on the device: everything in its processes, or on a CPU the operations of the program."""
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    devices = {pid for pid, name in names.items() if "/device:GPU" in name}
    complete = [e for e in events if e.get("ph") == "X"]
    if not devices:
        return [e for e in complete if "hlo_op" in e.get("args", {})]
    streams = [e for e in complete if e["pid"] in devices]
    # Lines like "XLA Ops" repeat, by operation, what the streams show.
    return [e for e in streams if "stream" in threads.get((e["pid"], e.get("tid")), "stream").lower()]


def summary(events: Iterable[Event]) -> dict[str, Any]:
    """Milliseconds of one step, and the longest kernels with their part of the kernels' time."""
    ordered = sorted(events, key=lambda e: e["ts"])
    if not ordered:
        raise RuntimeError("the trace has no events of the device")
    copies = [e for e in ordered if _COPY.search(e["name"])]
    kernels = [e for e in ordered if not _COPY.search(e["name"])]
    span = max(e["ts"] + e["dur"] for e in ordered) - ordered[0]["ts"]
    by_name: Counter[str] = Counter()
    for event in kernels:
        by_name[_shortened(event["name"])] += event["dur"]
    total = sum(by_name.values()) or 1.0
    per_step = 1e3 * STEPS
    return {
        "span_ms": span / per_step,
        "kernels_ms": covered(kernels) / per_step,
        "copies_ms": covered(copies) / per_step,
        "gaps_ms": (span - covered(ordered)) / per_step,
        "kernels": len(kernels) / STEPS,
        "longest": {name: round(spent / total, 4) for name, spent in by_name.most_common(_TOP)},
    }


def covered(events: Iterable[Event]) -> float:
    """Microseconds in which at least one of the events runs; they are in order of their start."""
    total, end = 0.0, float("-inf")
    for event in events:
        start, stop = event["ts"], event["ts"] + event["dur"]
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _shortened(name: str) -> str:
    return re.sub(r"[._]\d+$", "", name)[:80]
