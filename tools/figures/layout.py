"""Boxes of a figure: each fills the width that it is given, and is as high as its text and the boxes in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from figures.canvas import Anchor, Area, Canvas, Point
from figures.text import LINE, Line, spans_of, width_of, wrapped

_PADDING: Final = 10
_TIGHT: Final = 4
_GAP: Final = 10
_ARROW_GAP: Final = 24
_STEP_GAP: Final = 18
_BASELINE: Final = 14
_LOOP: Final = 14
_LABEL: Final = 7


@dataclasses.dataclass(frozen=True)
class Box:
    """A box with text and other boxes, as it is written in a figure's file.

    Attributes:
        id: The name by which arrows refer to it.
        title: Bold text.
        note: The module that implements it: muted code, to the right of the title if there is room.
        text: Paragraphs.
        kind: The colors, or ``none`` for no border.
        row: The boxes in it, side by side.
        column: The boxes in it, one below the other.
        lanes: The threads of a sequence of steps, one lane for each: the boxes in `steps` have a `lane`.
        steps: The steps of the lanes, in the order of time.
        lane: The lane of a step.
        arrows: Whether arrows connect the boxes of a row or column.
        via: The label of the arrow to this box, in a column.
        gap: The distance of the boxes in it, in pixels.
        share: The width, relative to the other boxes of a row.
        centered: Whether text is centered.
        is_tight: Whether the padding is small.
    """

    id: str = ""
    title: str = ""
    note: str = ""
    text: Sequence[str] = ()
    kind: str = "plain"
    row: Sequence[Box] = ()
    column: Sequence[Box] = ()
    lanes: Sequence[str] = ()
    steps: Sequence[Box] = ()
    lane: int = 0
    arrows: bool = False
    via: str = ""
    gap: float | None = None
    share: float = 1.0
    centered: bool = False
    is_tight: bool = False

    @classmethod
    def read(cls, source: Mapping[str, Any]) -> Box:
        """Creates a box from a table of a figure's file.

        Raises:
            TypeError: The table has an unknown key.
        """
        given = dict(source)
        for key in ("row", "column", "steps"):
            given[key] = [cls.read(child) for child in given.get(key, ())]
        text = given.get("text", ())
        given["text"] = [" ".join(paragraph.split()) for paragraph in ([text] if isinstance(text, str) else text)]
        return cls(**given)

    @property
    def padding(self) -> float:
        """The distance of the border from the content."""
        return 0 if self.kind == "none" else _TIGHT if self.is_tight else _PADDING

    def head(self, width: float) -> list[tuple[Line, bool, bool]]:
        """Returns the lines of text, each with whether it is muted, and whether it is at the end of the line before."""
        inner = width - 2 * self.padding
        lines = [(line, False, False) for line in wrapped(self.title, inner, is_bold=True)] if self.title else []
        if self.note:
            note = spans_of(f"`{self.note}`")
            beside = len(lines) == 1 and not self.centered and width_of(lines[0][0]) + width_of(note) + 12 <= inner
            lines += [(note, True, True)] if beside else [(line, True, False) for line in _notes(self.note, inner)]
        return [*lines, *((line, False, False) for part in self.text for line in wrapped(part, inner))]

    def height(self, width: float) -> float:
        """Returns the height for a given width."""
        lines = sum(not beside for _, _, beside in self.head(width))
        inner = width - 2 * self.padding
        content = self._content_height(inner)
        between = _GAP if lines and content else 0
        return lines * LINE + between + content + 2 * self.padding - (2 if lines and self.padding else 0)

    def _content_height(self, width: float) -> float:
        if self.row:
            return max(child.height(part) for child, part in zip(self.row, self.parts(width), strict=True))
        if self.column:
            gaps = self.distance * (len(self.column) - 1)
            return sum(child.height(width) for child in self.column) + gaps
        if self.lanes:
            steps = sum(step.height(self.lane_area(step.lane, width).width) + _STEP_GAP for step in self.steps)
            return LINE * 2 + steps - _STEP_GAP / 2
        return 0

    @property
    def distance(self) -> float:
        """The distance of the boxes in it."""
        return self.gap if self.gap is not None else _ARROW_GAP if self.arrows else _GAP

    def parts(self, width: float) -> list[float]:
        """Returns the widths of the boxes in a row."""
        free = width - self.distance * (len(self.row) - 1)
        shares = sum(child.share for child in self.row)
        return [free * child.share / shares for child in self.row]

    def lane_area(self, lane: int, width: float) -> Area:
        """Returns the column of a lane, relative to the sequence."""
        # The first lane, that of the calling thread, is twice as wide.
        unit = (width - _GAP * (len(self.lanes) - 1)) / (len(self.lanes) + 1)
        return Area((unit + _GAP) * lane + (unit if lane else 0), 0, unit if lane else 2 * unit, 0)


def _notes(note: str, width: float) -> list[Line]:
    """Returns the lines of a note, which is broken at commas."""
    return [spans_of(f"`{part.strip()}`") for part in _packed(note.split(","), width)]


def _packed(parts: Sequence[str], width: float) -> list[str]:
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]},{part}" if lines else part
        if lines and width_of(spans_of(f"`{longer}`")) <= width:
            lines[-1] = longer
        else:
            lines.append(part.strip())
    for line in lines:
        if width_of(spans_of(f"`{line}`")) > width:
            raise ValueError(f"the note {line!r} is wider than {width:.0f} pixels")
    return lines


class Drawing:
    """Draws boxes and remembers where they are, for arrows between them."""

    def __init__(self, canvas: Canvas) -> None:
        self._canvas = canvas
        self.places: dict[str, Area] = {}

    def box(self, box: Box, area: Area) -> None:
        """Draws a box and all boxes in it."""
        if box.id:
            self.places[box.id] = area
        if box.kind != "none":
            self._canvas.box(area, box.kind)
        y = self._head(box, area)
        inner = Area(area.x + box.padding, y, area.width - 2 * box.padding, area.bottom - box.padding - y)
        if box.row:
            self._row(box, inner)
        elif box.column:
            self._column(box, inner)
        elif box.lanes:
            self._lanes(box, inner)

    def _head(self, box: Box, area: Area) -> float:
        """Draws the text of a box, and returns where its content begins."""
        lines = box.head(area.width)
        count = sum(not beside for _, _, beside in lines)
        y = area.y + box.padding - (1 if box.padding else 0)
        is_leaf = not (box.row or box.column or box.lanes)
        if is_leaf:
            y = area.y + (area.height - count * LINE) / 2
        for line, is_muted, beside in lines:
            if beside:
                y -= LINE
            anchor: Anchor = "end" if beside else "middle" if box.centered else "start"
            x = {"end": area.right - box.padding, "middle": area.x + area.width / 2}.get(anchor, area.x + box.padding)
            self._canvas.text(line, x, y + _BASELINE, anchor=anchor, is_muted=is_muted)
            y += LINE
        return y + (_GAP if lines else 0)

    def _row(self, box: Box, area: Area) -> None:
        x = area.x
        for i, (child, width) in enumerate(zip(box.row, box.parts(area.width), strict=True)):
            if i and box.arrows:
                y = area.y + area.height / 2
                self._canvas.arrow([(x - box.distance, y), (x, y)])
            self.box(child, Area(x, area.y, width, area.height))
            x += width + box.distance

    def _column(self, box: Box, area: Area) -> None:
        y = area.y
        for i, child in enumerate(box.column):
            height = child.height(area.width)
            if i and box.arrows:
                self._arrows_down(box.column[i - 1], child, Area(area.x, y - box.distance, area.width, box.distance))
            self.box(child, Area(area.x, y, area.width, height))
            y += height + box.distance

    def _arrows_down(self, above: Box, below: Box, gap: Area) -> None:
        """Draws the arrows between two boxes of a column: one for each box of a row without a border."""
        starts, ends = _centers(above, gap, -1), _centers(below, gap, 0)
        centers = starts if len(starts) > len(ends) else ends
        for x in centers:
            self._canvas.arrow([(x, gap.y), (x, gap.bottom)])
        if below.via:
            self._canvas.text(spans_of(below.via), centers[0] + _LABEL, gap.y + gap.height / 2 + 3, is_muted=True)

    def _lanes(self, box: Box, area: Area) -> None:
        centers = []
        for i, name in enumerate(box.lanes):
            lane = box.lane_area(i, area.width)
            title = spans_of(name, is_bold=True)
            centers.append(area.x + lane.x + lane.width / 2)
            self._canvas.text(title, centers[i], area.y + _BASELINE, anchor="middle")
            self._canvas.lifeline(centers[i], area.y + LINE + 4, area.bottom)
        y = area.y + LINE * 2
        before: tuple[Box, Area] | None = None
        for step in box.steps:
            lane = box.lane_area(step.lane, area.width)
            place = Area(area.x + lane.x, y, lane.width, step.height(lane.width))
            self.box(step, place)
            if before is not None:
                self._hand_over(*before, step, place, centers)
            before = step, place
            y = place.bottom + _STEP_GAP

    def _hand_over(self, before: Box, start: Area, step: Box, end: Area, centers: Sequence[float]) -> None:
        """Draws the arrow from a step to the next one, which may be in another lane."""
        x, to_x = centers[before.lane], centers[step.lane]
        middle = (start.bottom + end.y) / 2
        turn = [] if x == to_x else [(x, middle), (to_x, middle)]
        self._canvas.arrow([(x, start.bottom), *turn, (to_x, end.y)])

    def arrow(self, source: Mapping[str, Any]) -> None:
        """Draws an arrow between two boxes: ``{from = "a.right", to = "b.left", via = "label", both = true}``."""
        start, end = (_end(source[key]) for key in ("from", "to"))
        points = _route(self.places[start[0]], start[1], self.places[end[0]], end[1])
        self._canvas.arrow(points, both=bool(source.get("both")))
        if "via" in source:
            self._label(spans_of(source["via"]), points)

    def _label(self, line: Line, points: Sequence[Point]) -> None:
        """Draws a label beside the longest straight part of an arrow."""
        pairs = zip(points, points[1:], strict=False)
        (x, y), (to_x, to_y) = max(pairs, key=lambda pair: abs(pair[0][0] - pair[1][0]) + abs(pair[0][1] - pair[1][1]))
        if x == to_x:
            self._canvas.text(line, x + _LABEL, (y + to_y) / 2 + 4, is_muted=True)
        else:
            self._canvas.text(line, (x + to_x) / 2, y - 5, anchor="middle", is_muted=True)


def _centers(box: Box, area: Area, end: int) -> list[float]:
    """Returns the x coordinates at which arrows enter (end 0) or leave (end -1) a box that is as wide as `area`."""
    if box.kind != "none" or not box.row:
        return [area.x + area.width / 2]
    widths = box.parts(area.width)
    lefts = [area.x + sum(widths[:i]) + i * box.distance for i in range(len(widths))]
    centers = [left + width / 2 for left, width in zip(lefts, widths, strict=True)]
    return [centers[end]] if box.arrows else centers


def _end(name: str) -> tuple[str, str]:
    box, _, side = name.rpartition(".")
    return box, side


def _route(start: Area, side: str, end: Area, to_side: str) -> list[Point]:
    """Returns the corners of an arrow from one side of a box to a side of another."""
    if {side, to_side} <= {"top", "bottom"}:
        common = max(start.x, end.x), min(start.right, end.right)
        if common[0] < common[1]:
            x = sum(common) / 2
            return [(x, _at(start, side)[1]), (x, _at(end, to_side)[1])]
        one, other = _at(start, side), _at(end, to_side)
        middle = (one[1] + other[1]) / 2
        return [one, (one[0], middle), (other[0], middle), other]
    one, other = _at(start, side), _at(end, to_side)
    if side == to_side:
        x = max(one[0], other[0]) + _LOOP if side == "right" else min(one[0], other[0]) - _LOOP
        return [one, (x, one[1]), (x, other[1]), other]
    if {side, to_side} == {"left", "right"}:
        common = max(start.y, end.y), min(start.bottom, end.bottom)
        if common[0] < common[1]:
            y = sum(common) / 2
            return [(one[0], y), (other[0], y)]
        middle = (one[0] + other[0]) / 2
        return [one, (middle, one[1]), (middle, other[1]), other]
    corner = (other[0], one[1]) if side in ("left", "right") else (one[0], other[1])
    return [one, corner, other]


def _at(area: Area, side: str) -> Point:
    x = {"left": area.x, "right": area.right}.get(side, area.x + area.width / 2)
    y = {"top": area.y, "bottom": area.bottom}.get(side, area.y + area.height / 2)
    return x, y
