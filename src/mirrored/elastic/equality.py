"""Properties that must be equal on all workers of an elastic job, so that every worker computes the same results.

A worker that differs is refused before it joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mirrored.cluster.equality import CPU_INFO, FLAGS, flags_that_differ, properties
from mirrored.cluster.joining import difference, fingerprint


def description(environment: Mapping[str, str] | None = None, cpu_info: Path = CPU_INFO) -> dict[str, str]:
    """Returns the versions, settings and properties of this worker that must be equal on all workers of its job.

    Args:
        environment: Read instead of `os.environ`.
        cpu_info: The file that lists the processors' flags; those of the first one count.
    """
    return {**fingerprint(environment), **properties(environment, cpu_info)}


def refusal(expected: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Returns the first difference that prevents a worker from joining a job, in words; None if the worker can join.

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
    return f"its CPU differs from that of the workers of the job: it {flags_that_differ(ours, theirs)}"
