"""Telling a hang from patience: from where all workers stand and how long nobody has moved."""

from __future__ import annotations

from collections.abc import Mapping

from mirrored.watch.roll import Standing


def apart(standings: Mapping[int, Standing]) -> str | None:
    """Names two workers that are at different operations under one number, if there are such.

    They can never come together: each waits for the other, or has taken part in something else than it believes.
    """
    if not standings:
        return None
    first, reference = min(standings.items())
    for worker, standing in sorted(standings.items())[1:]:
        for number in sorted(reference.recent.keys() & standing.recent.keys()):
            if reference.recent[number] != standing.recent[number]:
                return (
                    f"operation {number} of worker {first} is: {reference.recent[number]}; that of worker {worker} is: "
                    f"{standing.recent[number]}. All workers make the same calls in the same order: take it out of the "
                    "Python branch that only some of them enter"
                )
    return None


def left_behind(standings: Mapping[int, Standing]) -> str | None:
    """Names a worker whose program has ended before an operation that another one waits in, if there is one."""
    for worker, standing in sorted(standings.items()):
        ahead = [other for other, theirs in sorted(standings.items()) if theirs.count > standing.count]
        if standing.has_ended and ahead:
            waiting = standings[ahead[0]]
            return (
                f"worker {worker} ({standing.name}) has ended after operation {standing.count} ({standing.newest}), "
                f"and worker {ahead[0]} has come to operation {waiting.count}: {waiting.newest}. All workers make the "
                "same calls: the same number of steps, and none by the chief alone"
            )
    return None


def stuck(standings: Mapping[int, Standing], still_seconds: float, limit_seconds: float) -> str | None:
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
    return "\n".join(lines)


def _place(standing: Standing, newest: int) -> str:
    if standing.count == newest:
        doing = "and is inside it" if standing.inside else "and has gone on"
        return f"has arrived at operation {newest}, {standing.newest}, {doing}"
    ended = "; its program has ended" if standing.has_ended else ""
    return f"has NOT arrived at operation {newest}: its newest is {standing.count}, {standing.newest}{ended}"


def silent(seconds_since: Mapping[int, float], limit_seconds: float) -> list[int]:
    """The workers that have given no sign of life for too long."""
    return [worker for worker, seconds in sorted(seconds_since.items()) if seconds > limit_seconds]
