"""Hang detection: compares the progress of all workers to decide whether the job is deadlocked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from mirrored.watchdog.worker_progress import CallSite, WorkerProgress

_RULE = "All workers must make the same calls in the same order"
_REMEDY = "move the call out of the Python branch that only some workers enter"


def mismatched_calls(standings: Mapping[int, WorkerProgress]) -> str | None:
    """Returns a description of the first point where two workers' sequences of collectives differ; None if they agree.

    Such workers cannot continue: each waits for the other, or has already exchanged data with another operation.
    """
    if not standings:
        return None
    first, reference = min(standings.items())
    for worker, progress in sorted(standings.items())[1:]:
        number = _first_difference(reference, progress)
        if number is not None:
            return (
                f"operation {number} of worker {first} is: {reference.described(number)}; that of worker {worker} is: "
                f"{progress.described(number)}.{_sentences(unmatched_calls(standings))} {_RULE}: {_REMEDY}"
            )
        mark = _first_mark(reference, progress)
        if mark is not None:
            return (
                f"workers {first} and {worker} have not made the same calls up to operation {mark}; now worker {first} "
                f"is at: {reference.newest}; worker {worker} is at: {progress.newest}."
                f"{_sentences(unmatched_calls(standings))} {_RULE}: {_REMEDY}"
            )
    return None


def _first_difference(one: WorkerProgress, other: WorkerProgress) -> int | None:
    """Returns the number of the first operation in which two workers' logs differ; None if no operation differs."""
    start, end = max(one.oldest, other.oldest), min(one.count, other.count)
    begins = {stretch.first for stretch in (*one.stretches, *other.stretches)} | {start}
    return next(
        (number for number in sorted(begins) if start <= number <= end and one.called(number) != other.called(number)),
        None,
    )


def _first_mark(one: WorkerProgress, other: WorkerProgress) -> int | None:
    common = sorted(one.marks.keys() & other.marks.keys())
    return next((number for number in common if one.marks[number] != other.marks[number]), None)


def ended_early(standings: Mapping[int, WorkerProgress]) -> str | None:
    """Describes a worker that ended before a collective that others have reached; None if there is no such worker."""
    for worker, progress in sorted(standings.items()):
        ahead = [other for other, its_progress in sorted(standings.items()) if its_progress.count > progress.count]
        if progress.has_ended and ahead:
            waiting = standings[ahead[0]]
            return (
                f"worker {worker} ({progress.name}) has ended after operation {progress.count} ({progress.newest}), "
                f"and worker {ahead[0]} has reached operation {waiting.count}: {waiting.newest}."
                f"{_sentences(unmatched_calls(standings))} All workers must make the same calls: the same number of "
                "steps, and no call on one worker only"
            )
    return None


def unmatched_calls(standings: Mapping[int, WorkerProgress]) -> dict[tuple[int, str, str], str]:
    """Returns a sentence for each program line at which one worker called a collective and another worker did not.

    The other worker has matched that call with a call at another line. This is harmless if the two lines are branches
    of one `if`, and the first worker has called the operation at the other line in another step. Otherwise the workers
    are one call apart.

    Returns:
        A sentence for each such line, by worker, operation and line.
    """
    found = {}
    for (worker, progress), (other, its_progress) in itertools.permutations(sorted(standings.items()), 2):
        for place in _missed_call_sites(progress, its_progress):
            counterparts = [one for one in _missed_call_sites(its_progress, progress) if one.label == place.label]
            key = worker, place.label, place.line
            if not counterparts and key not in found:
                found[key] = (
                    f"worker {worker} ({progress.name}) has executed {place.label} at {place.line} "
                    f"({_times(place.times)}; the first is its operation {place.first}), and worker {other} has not"
                )
    return found


def _missed_call_sites(one: WorkerProgress, other: WorkerProgress) -> list[CallSite]:
    """Returns the program lines with a collective that worker `one` called, and that worker `other` has skipped."""
    if other.has_more_places:
        return []
    known = {(place.label, place.line) for place in other.places}
    passed = [place for place in one.places if place.first <= other.count or other.has_ended]
    return [place for place in passed if place.line and (place.label, place.line) not in known]


def _sentences(sentences: Mapping[tuple[int, str, str], str]) -> str:
    return "".join(f" {text[0].upper()}{text[1:]}." for text in itertools.islice(sentences.values(), 3))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def deadlock(standings: Mapping[int, WorkerProgress], still_seconds: float, limit_seconds: float) -> str | None:
    """Describes which workers have reached the newest collective if the job is deadlocked; otherwise returns None.

    Args:
        standings: The progress of each worker.
        still_seconds: How long no worker has made progress.
        limit_seconds: How long workers may wait without progress before the job counts as deadlocked.
    """
    counts = {standing.count for standing in standings.values()}
    if still_seconds < limit_seconds or (len(counts) == 1 and not any(one.inside for one in standings.values())):
        return None
    newest = max(counts)
    lines = [f"no worker has made progress for {still_seconds:.0f} s"]
    lines += [f"  worker {worker} ({one.name}) {_place(one, newest)}" for worker, one in sorted(standings.items())]
    lines += [f"  {text}" for text in unmatched_calls(standings).values()]
    return "\n".join(lines)


def _place(progress: WorkerProgress, newest: int) -> str:
    if progress.count == newest:
        doing = "and is inside it" if progress.inside else "and has returned from it"
        return f"has arrived at operation {newest}, {progress.newest}, {doing}"
    ended = "; its program has ended" if progress.has_ended else ""
    return f"has NOT arrived at operation {newest}: its newest is {progress.count}, {progress.newest}{ended}"


def without_heartbeat(seconds_since: Mapping[int, float], limit_seconds: float) -> list[int]:
    """Returns the indices of the workers that have sent no heartbeat for longer than a limit."""
    return [worker for worker, seconds in sorted(seconds_since.items()) if seconds > limit_seconds]
