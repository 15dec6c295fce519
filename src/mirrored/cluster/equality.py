"""Properties of a worker's processor that must be equal on all workers of a job for bit-identical results.

XLA compiles for the instructions of the CPU, and divides operations among its threads: with others, sums are rounded
differently. Copies of variables, which each worker updates by itself, would differ in the last bits.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mirrored._jax.source_lines import user_stacklevel
from mirrored.cluster.joining import difference
from mirrored.errors import DisagreementError

FLAGS: Final = "the set of CPU flags"
THREADS: Final = "the number of XLA's threads"
# XLA reads them in this order; without them it counts the processors on which the process may run.
_THREAD_VARIABLES: Final = ("PJRT_NPROC", "NPROC")
CPU_INFO: Final = Path("/proc/cpuinfo")
_MOST_FLAGS: Final = 8


def properties(environment: Mapping[str, str] | None = None, cpu_info: Path = CPU_INFO) -> dict[str, str]:
    """Returns the properties of this worker's processor that can affect the bits of results computed on CPUs.

    Args:
        environment: Read instead of `os.environ`.
        cpu_info: The file that lists the processors' flags; those of the first one count.
    """
    environment = os.environ if environment is None else environment
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    given = next((environment[name] for name in _THREAD_VARIABLES if environment.get(name)), None)
    return {
        "the architecture": platform.machine(),
        FLAGS: " ".join(sorted(flags.split())),
        THREADS: str(_schedulable() if given is None else given),
    }


def _schedulable() -> int:
    """Returns the number of processors on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flags_that_differ(expected: str, other: str) -> str:
    """Describes how a worker's CPU flags differ from the expected flags, as in ``lacks avx512f and has also amx``."""
    missing, more = _some(expected, other), _some(other, expected)
    return " and ".join([f"lacks {missing}"] * bool(missing) + [f"has also {more}"] * bool(more))


def _some(flags: str, without: str) -> str:
    own = sorted(set(flags.split()) - set(without.split()))
    return ", ".join(own[:_MOST_FLAGS]) + (f" and {len(own) - _MOST_FLAGS} more" if len(own) > _MOST_FLAGS else "")


def check_properties(
    called: str, everyone: Sequence[Mapping[str, str]], names: Sequence[str], *, deterministic: bool
) -> None:
    """Warns if two workers' processors may compute different bits; raises an error if equal bits are required.

    Args:
        called: What the user called, for messages.
        everyone: The properties, by worker.
        names: The workers' addresses.
        deterministic: Whether results must be bit-identical.

    Raises:
        DisagreementError: Two workers differ, and `deterministic` is set. It names the first such worker and property.
    """
    for worker, other in enumerate(everyone):
        what = difference(everyone[0], other)
        if what is None:
            continue
        ours, theirs = everyone[0][what], other.get(what, "")
        place = f"worker {worker} ({names[worker]})"
        found = f"{what} is {ours!r} on worker 0 ({names[0]}) and {theirs!r} on {place}"
        if what == FLAGS:
            found = f"the CPU of {place} {flags_that_differ(ours, theirs)}, compared with worker 0 ({names[0]})"
        rule = "devices compute equal bits only with the same CPU features and the same number of threads"
        remedy = (
            "use machines with the same CPU (XLA_FLAGS=--xla_cpu_max_isa=AVX2 on all workers may help for others), "
            "and set NPROC to the same number"
        )
        if deterministic:
            raise DisagreementError(called, found=found, rule=rule, remedy=f"{remedy}; or omit deterministic=True")
        message = f"{called}: {found}\n  rule:   {rule}\n  remedy: {remedy}"
        warnings.warn(message, UserWarning, stacklevel=user_stacklevel())
        return
