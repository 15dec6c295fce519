"""Telling a hang from patience: from where all workers stand and how long nobody has moved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from mirrored.watchdog.worker_progress import CallSite, WorkerProgress

_RULE = "All workers make the same calls in the same order"
_REMEDY = "take it out of the Python branch that only some of them enter"


def apart(standings: Mapping[int, WorkerProgress]) -> str | None:
    """Names two workers that are at different operations under one number, if there are such.

    They can never come together: each waits for the other, or has taken part in something else than it believes.
    """
    if not standings:
        return None
    first, reference = min(standings.items())
    for worker, standing in sorted(standings.items())[1:]:
        number = _first_difference(reference, standing)
        if number is not None:
            return (
                f"operation {number} of worker {first} is: {reference.described(number)}; that of worker {worker} is: "
                f"{standing.described(number)}.{_told(alone(standings))} {_RULE}: {_REMEDY}"
            )
        mark = _first_mark(reference, standing)
        if mark is not None:
            return (
                f"workers {first} and {worker} have not made the same calls up to operation {mark}; now worker {first} "
                f"is at: {reference.newest}; worker {worker} is at: {standing.newest}.{_told(alone(standings))} "
                f"{_RULE}: {_REMEDY}"
            )
    return None


def _first_difference(one: WorkerProgress, other: WorkerProgress) -> int | None:
    """The first operation of those that both remember that is not the same."""
    start, end = max(one.oldest, other.oldest), min(one.count, other.count)
    begins = {stretch.first for stretch in (*one.stretches, *other.stretches)} | {start}
    return next(
        (number for number in sorted(begins) if start <= number <= end and one.called(number) != other.called(number)),
        None,
    )


def _first_mark(one: WorkerProgress, other: WorkerProgress) -> int | None:
    common = sorted(one.marks.keys() & other.marks.keys())
    return next((number for number in common if one.marks[number] != other.marks[number]), None)


def left_behind(standings: Mapping[int, WorkerProgress]) -> str | None:
    """Names a worker whose program has ended before an operation that another one waits in, if there is one."""
    for worker, standing in sorted(standings.items()):
        ahead = [other for other, theirs in sorted(standings.items()) if theirs.count > standing.count]
        if standing.has_ended and ahead:
            waiting = standings[ahead[0]]
            return (
                f"worker {worker} ({standing.name}) has ended after operation {standing.count} ({standing.newest}), "
                f"and worker {ahead[0]} has come to operation {waiting.count}: {waiting.newest}."
                f"{_told(alone(standings))} All workers make the same calls: the same number of steps, and none by the "
                "chief alone"
            )
    return None


def alone(standings: Mapping[int, WorkerProgress]) -> dict[tuple[int, str, str], str]:
    """Lines that one worker has called an operation from, and another has passed by without any call of its own.

    That other worker has taken the call for one that it made elsewhere. Nothing is amiss if that was an `if` whose
    other branch calls the operation at a line that all pass now and then; else the workers are one call apart.

    Returns:
        A sentence for each, by worker, operation and line.
    """
    found = {}
    for (worker, mine), (other, theirs) in itertools.permutations(sorted(standings.items()), 2):
        for place in _own_places(mine, theirs):
            counterparts = [one for one in _own_places(theirs, mine) if one.label == place.label]
            key = worker, place.label, place.line
            if not counterparts and key not in found:
                found[key] = (
                    f"worker {worker} ({mine.name}) has made {place.label} at {place.line} ({_times(place.times)}; the "
                    f"first is its operation {place.first}), and worker {other} has not"
                )
    return found


def _own_places(mine: WorkerProgress, theirs: WorkerProgress) -> list[CallSite]:
    """Where I have made calls at lines that the other one has passed by."""
    if theirs.has_more_places:
        return []
    known = {(place.label, place.line) for place in theirs.places}
    passed = [place for place in mine.places if place.first <= theirs.count or theirs.has_ended]
    return [place for place in passed if place.line and (place.label, place.line) not in known]


def _told(sentences: Mapping[tuple[int, str, str], str]) -> str:
    return "".join(f" {text[0].upper()}{text[1:]}." for text in itertools.islice(sentences.values(), 3))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def stuck(standings: Mapping[int, WorkerProgress], still_seconds: float, limit_seconds: float) -> str | None:
    """Says who has arrived and who has not, if nobody has moved for too long although somebody waits.

    Args:
        standings: By worker.
        still_seconds: For how long they are what they are.
        limit_seconds: How long is too long.
    """
    counts = {standing.count for standing in standings.values()}
    if still_seconds < limit_seconds or (len(counts) == 1 and not any(one.inside for one in standings.values())):
        return None
    newest = max(counts)
    lines = [f"no worker has moved for {still_seconds:.0f} s"]
    lines += [f"  worker {worker} ({one.name}) {_place(one, newest)}" for worker, one in sorted(standings.items())]
    lines += [f"  {text}" for text in alone(standings).values()]
    return "\n".join(lines)


def _place(standing: WorkerProgress, newest: int) -> str:
    if standing.count == newest:
        doing = "and is inside it" if standing.inside else "and has gone on"
        return f"has arrived at operation {newest}, {standing.newest}, {doing}"
    ended = "; its program has ended" if standing.has_ended else ""
    return f"has NOT arrived at operation {newest}: its newest is {standing.count}, {standing.newest}{ended}"


def silent(seconds_since: Mapping[int, float], limit_seconds: float) -> list[int]:
    """The workers that have given no sign of life for too long."""
    return [worker for worker, seconds in sorted(seconds_since.items()) if seconds > limit_seconds]
