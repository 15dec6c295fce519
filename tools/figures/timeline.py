"""The timeline of an elastic job: what each worker does when, drawn from the events that the job has logged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from figures.canvas import Area, Canvas
from figures.text import LINE, spans_of

LEAVES: Final = ("interrupting", "quiescing", "settling", "clearing")
RESTORES: Final = ("creating", "restoring")
FIRST_STEP: Final = "first step"
# The kinds of box; what is no phase named above is part of joining.
KIND_OF: Final = {
    "trains": "blue",
    "leaves": "orange",
    "joins": "purple",
    "restores": "green",
    FIRST_STEP: "group",
    "starts": "plain",
}
_LABEL_WIDTH: Final = 70.0
_ROW: Final = 34.0
_BAR: Final = 20.0
_LEAST_PIXELS: Final = 1.0

Bar = tuple[str, float, float]
"""What a worker does, from when until when, in seconds."""


def draw_timeline(canvas: Canvas, source: Mapping[str, Any], area: Area) -> Area:
    """Draws marks, one row of bars per worker, and an axis in seconds; returns the area that is filled."""
    rows: Mapping[str, Sequence[Bar]] = source["timeline"]
    first = min(bar[1] for bars in rows.values() for bar in bars)
    last = max(bar[2] for bars in rows.values() for bar in bars)
    scale = (area.width - _LABEL_WIDTH) / (last - first)

    def x_of(seconds: float) -> float:
        return area.x + _LABEL_WIDTH + (seconds - first) * scale

    top = area.y + LINE + 4
    bottom = top + _ROW * len(rows)
    for mark in source.get("marks", ()):
        canvas.text(spans_of(mark["text"]), x_of(mark["at"]), area.y + 11)
        canvas.lifeline(x_of(mark["at"]), area.y + 15, bottom)
    for number, (name, bars) in enumerate(rows.items()):
        y = top + _ROW * number + (_ROW - _BAR) / 2
        canvas.text(spans_of(name), area.x, y + 15)
        for what, begin, end in bars:
            width = max(_LEAST_PIXELS, (end - begin) * scale)
            canvas.box(Area(x_of(begin), y, width, _BAR), KIND_OF[what])
    for tick in source["ticks"]:
        canvas.text(spans_of(f"{tick} s"), x_of(tick), bottom + LINE, anchor="middle", is_muted=True)
    return Area(area.x, area.y, area.width, bottom + LINE + 4 - area.y)


def legend_of_timeline(source: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the entries of the legend: what occurs in the rows."""
    used = {bar[0] for bars in source["timeline"].values() for bar in bars}
    return [{"kind": kind, "text": what} for what, kind in KIND_OF.items() if what in used]


def rows_of_log(path: Path, begin: float, end: float) -> dict[str, list[Bar]]:
    """Reads the bars of each worker from ``elastic.jsonl``, which `mirrored run --elastic --log-dir` writes.

    Args:
        path: The log.
        begin: The time with which the timeline begins, and from which its seconds count.
        end: The time with which it ends.
    """
    bars: dict[int, list[Bar]] = {}
    since: dict[int, tuple[str, float]] = {}  # what a worker does now

    def close(worker: int, at: float) -> None:
        if worker in since:
            what, began = since.pop(worker)
            bars.setdefault(worker, []).append((what, began, at))

    for line in path.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        at, worker = event["at"], event.get("worker")
        match event["event"]:
            case "started":
                since[worker] = ("starts", at)
            case "arrived" | "leave" | "lost":
                close(worker, at)
            case "stepped":
                close(worker, at)
                for name, began, seconds in event["phases"]:
                    bars.setdefault(worker, []).append((_what(name), began, began + seconds))
                since[worker] = ("trains", at)
    for worker in list(since):
        close(worker, end)
    return {f"worker {worker}": _clipped(bars[worker], begin, end) for worker in sorted(bars)}


def _what(phase: str) -> str:
    if phase in LEAVES:
        return "leaves"
    if phase in RESTORES:
        return "restores"
    return phase if phase == FIRST_STEP else "joins"


def _clipped(bars: Sequence[Bar], begin: float, end: float) -> list[Bar]:
    """Returns the bars inside of a period, with times from its begin; neighbours of one kind become one bar."""
    found: list[Bar] = []
    for what, began, ended in sorted(bars, key=lambda bar: bar[1]):
        if ended <= begin or began >= end:
            continue
        bar = (what, round(max(began, begin) - begin, 3), round(min(ended, end) - begin, 3))
        if found and found[-1][0] == what and bar[1] - found[-1][2] < 0.01:
            bar = (what, found.pop()[1], bar[2])
        found.append(bar)
    return found


def source_of_log(path: Path, failure: float | None, title: str, description: str) -> str:
    """Returns the TOML file of a timeline, from a second before a failure to a second after the last recovery.

    Args:
        path: The log of a job in which one worker was killed and replaced.
        failure: The time of the kill, from which the seconds count. None: when the launcher has seen it.
        title: The title of the figure.
        description: Its description.
    """
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lost = next(event for event in events if event["event"] == "lost")
    joined = next(event["at"] for event in events if event["event"] == "leave" and event["at"] > lost["at"] + 0.5)
    failure = failure or lost["at"]
    begin, end = failure - 1.0, max(event["at"] for event in events if event["event"] == "stepped") + 1.0
    ticks = list(range(0, int(end - failure) + 1, 2))
    lines = [f"title = {json.dumps(title)}", f'description = """\n{description}\n"""', f"ticks = {ticks}", "marks = ["]
    for at, text in ((failure, f"worker {lost['worker']} is killed"), (joined, "its replacement joins")):
        lines.append(f'  {{at = {at - failure:.3f}, text = "{text}"}},')
    lines += ["]", "[timeline]"]
    for name, bars in rows_of_log(path, begin, end).items():
        lines.append(f'"{name}" = [')
        lines += [
            f'  ["{what}", {first + begin - failure:.3f}, {last + begin - failure:.3f}],' for what, first, last in bars
        ]
        lines.append("]")
    return "\n".join(lines) + "\n"
