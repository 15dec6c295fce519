"""What must be equal on all workers of an elastic job, so that its results do not depend on which workers compute them.

XLA compiles for the instructions of the CPU, and divides operations among its threads: with others, sums are rounded
differently. A worker that differs is refused before it joins.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mirrored.cluster.joining import difference, fingerprint

FLAGS: Final = "the set of CPU flags"
THREADS: Final = "the number of XLA's threads"
# XLA reads them in this order; without them it counts the processors on which the process may run.
_THREAD_VARIABLES: Final = ("PJRT_NPROC", "NPROC")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_MOST_FLAGS: Final = 8


def description(environment: Mapping[str, str] | None = None, cpu_info: Path = _CPU_INFO) -> dict[str, str]:
    """Returns the versions, settings and properties of this worker that must be equal on all workers of its job.

    Args:
        environment: Read instead of `os.environ`.
        cpu_info: The file that lists the processors' flags; those of the first one count.
    """
    environment = os.environ if environment is None else environment
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    given = next((environment[name] for name in _THREAD_VARIABLES if environment.get(name)), None)
    return {
        **fingerprint(environment),
        "the architecture": platform.machine(),
        FLAGS: " ".join(sorted(flags.split())),
        THREADS: str(_schedulable() if given is None else given),
    }


def _schedulable() -> int:
    """Returns the number of processors on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refusal(expected: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Returns why a worker cannot join a job, in words that name the first difference; None if it can.

    Args:
        expected: The description of a worker of the job.
        other: The description of the worker that is to join.
    """
    what = difference(expected, other)
    if what is None:
        return None
    ours, theirs = expected[what], other.get(what, "")
    if what != FLAGS:
        return f"{what} is {ours!r} on the workers of the job, and {theirs!r} on this one"
    missing = _some(set(ours.split()) - set(theirs.split()))
    more = _some(set(theirs.split()) - set(ours.split()))
    parts = [f"lacks {missing}"] * bool(missing) + [f"has also {more}"] * bool(more)
    return f"its CPU differs from that of the workers of the job: it {' and '.join(parts)}"


def _some(flags: set[str]) -> str:
    shown = sorted(flags)[:_MOST_FLAGS]
    return ", ".join(shown) + (f" and {len(flags) - _MOST_FLAGS} more" if len(flags) > _MOST_FLAGS else "")
