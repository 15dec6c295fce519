"""Finds the faults in a cluster by comparing the facts and all-reduce times of the workers' machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirrored.cli.doctor.facts import Facts
from mirrored.cli.doctor.gpus import gpu_findings
from mirrored.cli.doctor.links import Link

_LEAST_FREE_BYTES: Final = 2**30
_CLOCK_SECONDS: Final = 1.0
# A link is slow below this fraction of the usual bandwidth, or above this multiple of the usual latency.
_SLOW_PART: Final = 1 / 3
_SLOW_TIMES: Final = 5.0


def findings(workers: Sequence[Facts], links: Sequence[Link], clock_error_seconds: float = 0.0) -> list[str]:
    """Returns a description of every fault found in a cluster, with the worker and host that have the fault.

    Args:
        workers: The facts of each worker.
        links: The measured links between pairs of workers.
        clock_error_seconds: The error of the comparison of clocks.
    """
    names = [f"worker {rank} ({one.host})" for rank, one in enumerate(workers)]
    found = []
    for rank, one in enumerate(workers):
        found += [f"{names[rank]}: {text}" for text in _compared(one, workers[0])]
        found += [f"{names[rank]}: {text}" for text in _disk(one)]
        found += [f"{names[rank]}: {text}" for text in (gpu_findings(one.gpus) if one.gpus is not None else ())]
        skew = one.clock - workers[0].clock
        if abs(skew) > _CLOCK_SECONDS + clock_error_seconds:
            found.append(f"{names[rank]}: its clock is {skew:+.1f} s from that of worker 0")
    return found + _slow(links, names, [one.host for one in workers])


def _compared(one: Facts, first: Facts) -> list[str]:
    different = [
        f"{what} is {one.versions.get(what)!r}, on worker 0 {expected!r}"
        for what, expected in first.versions.items()
        if one.versions.get(what) != expected
    ]
    if one.kind != first.kind:
        different.append(f"its devices are {one.devices} {one.kind}, those of worker 0 {first.devices} {first.kind}")
    drivers = [{gpu.driver for gpu in each.gpus.gpus} if each.gpus is not None else set() for each in (one, first)]
    if drivers[0] and drivers[1] and drivers[0] != drivers[1]:
        own, expected = (" and ".join(sorted(each)) for each in drivers)
        different.append(f"its GPU driver is {own}, on worker 0 {expected}")
    return different


def _disk(one: Facts) -> list[str]:
    if one.trouble is not None:
        return [one.trouble]
    if one.free_bytes is not None and one.free_bytes < _LEAST_FREE_BYTES:
        return [f"only {one.free_bytes / 2**20:.0f} MiB are free for checkpoints"]
    return []


def _slow(links: Sequence[Link], names: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Describes the slow links between workers; if all links of a worker are slow, names the worker instead.

    Links within a machine are compared with each other, and links between machines likewise.
    """
    slow: list[Link] = []
    for within in (True, False):
        alike = [link for link in links if (hosts[link.workers[0]] == hosts[link.workers[1]]) is within]
        slow += _slower_than_usual(alike)
    culprits = [
        rank
        for rank in range(len(names))
        if all(link in slow for link in links if rank in link.workers) and len(slow) < len(links)
    ]
    found = [f"{names[rank]}: all its links are slow" for rank in culprits]
    rest = [link for link in slow if not set(link.workers) & set(culprits)]
    return found + [f"the link of {' and '.join(names[rank] for rank in link.workers)} is slow" for link in rest]


def _slower_than_usual(links: Sequence[Link]) -> list[Link]:
    """Returns the links between workers that are much slower than the fastest quarter of the links.

    The usual rate is that of the best quarter: one slow worker in a ring of three or four slows half of the links.
    """
    if len(links) < 3:
        return []
    bandwidth = sorted((link.bytes_per_second for link in links), reverse=True)[len(links) // 4]
    latency = sorted(link.latency_seconds for link in links)[len(links) // 4]
    return [
        link
        for link in links
        if link.bytes_per_second < bandwidth * _SLOW_PART or link.latency_seconds > latency * _SLOW_TIMES
    ]
