"""The canvas of a figure: collects rectangles, lines and text, and writes them as SVG."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Final, Literal
from xml.sax.saxutils import escape

from figures.text import SIZE, SMALL, Line, Span, width_of

WIDTH: Final = 700
"""The width of every figure in pixels."""

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

# Fill and border of each kind of box, in light and dark mode.
KINDS: Final = {
    "plain": (("#f6f8fa", "#8c959f"), ("#21262d", "#6e7681")),
    "group": (("#ffffff", "#8c959f"), ("#0d1117", "#6e7681")),
    "blue": (("#ddf4ff", "#0969da"), ("#0c2d6b", "#58a6ff")),
    "green": (("#dafbe1", "#1a7f37"), ("#033a16", "#3fb950")),
    "orange": (("#fff1e5", "#bc4c00"), ("#4d1d00", "#f0883e")),
    "purple": (("#fbefff", "#8250df"), ("#3c1e70", "#a371f7")),
}
# Other colors, in light and dark mode.
COLORS: Final = {
    "background": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#b7bdc8"),
    "line": ("#59636e", "#9198a1"),
}
_FONT: Final = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_CODE_FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_ASCENT: Final = 11
_DESCENT: Final = 4
_HEAD: Final = 7


@dataclasses.dataclass(frozen=True)
class Area:
    """A rectangle, in pixels from the upper left corner of the figure."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x coordinate of the right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y coordinate of the lower side."""
        return self.y + self.height

    def overlaps(self, other: Area) -> bool:
        """Returns whether the two rectangles have points in common."""
        apart = self.right <= other.x or other.right <= self.x or self.bottom <= other.y or other.bottom <= self.y
        return not apart

    def contains(self, other: Area) -> bool:
        """Returns whether the other rectangle is inside."""
        inside = self.x <= other.x and other.right <= self.right
        return inside and self.y <= other.y and other.bottom <= self.bottom


class Canvas:
    """A figure that is being drawn.

    Attributes:
        texts: The area of each line of text, with its characters.
        segments: The area of each straight part of an arrow.
    """

    def __init__(self) -> None:
        self.texts: list[tuple[Area, str]] = []
        self.segments: list[Area] = []
        self._shapes: list[str] = []
        self._arrows: list[str] = []
        self._words: list[str] = []

    def box(self, area: Area, kind: str) -> None:
        """Draws a rectangle with the colors of its kind. A group has a dashed border."""
        place = f'x="{_number(area.x)}" y="{_number(area.y)}"'
        size = f'width="{_number(area.width)}" height="{_number(area.height)}"'
        self._shapes.append(f'<rect class="{kind}" {place} {size} rx="5"/>')

    def text(self, line: Line, x: float, y: float, *, anchor: Anchor = "start", is_muted: bool = False) -> None:
        """Draws a line of text with its baseline at `y`. It starts, has its middle, or ends at `x`."""
        name = "muted" if is_muted else "text"
        place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" xml:space="preserve"'
        self._words.append(f'<text class="{name}" {place}>{"".join(map(_tspan, line))}</text>')
        width = width_of(line)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        area = Area(left, y - _ASCENT, width, _ASCENT + _DESCENT)
        self.texts.append((area, "".join(span.text for span in line)))

    def lifeline(self, x: float, top: float, bottom: float) -> None:
        """Draws a dashed vertical line."""
        self._shapes.append(f'<path class="lifeline" d="M{_number(x)} {_number(top)}V{_number(bottom)}"/>')

    def arrow(self, points: Sequence[Point], *, both: bool = False) -> None:
        """Draws an arrow along horizontal and vertical lines between the points, with a head at the end or at both."""
        for one, other in itertools.pairwise(points):
            left, top = min(one[0], other[0]), min(one[1], other[1])
            self.segments.append(Area(left, top, abs(one[0] - other[0]), abs(one[1] - other[1])))
        ends = [(points[-2], points[-1]), *([(points[1], points[0])] if both else [])]
        # The line ends inside the head, whose tip would otherwise be blunt.
        line = list(points)
        line[-1] = _before(*ends[0])
        if both:
            line[0] = _before(*ends[1])
        path = "L".join(f"{_number(x)} {_number(y)}" for x, y in line)
        self._arrows.append(f'<path class="line" d="M{path}"/>')
        self._arrows += [_head(start, end) for start, end in ends]

    def svg(self, height: float, title: str, description: str) -> str:
        """Returns the figure as the text of an SVG file."""
        size = f'width="{WIDTH}" height="{_number(height)}" viewBox="0 0 {WIDTH} {_number(height)}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(title)}</title>',
                f'<desc id="desc">{escape(description)}</desc>',
                f"<style>\n{_style()}\n</style>",
                '<rect class="background" width="100%" height="100%"/>',
                *self._shapes,
                *self._arrows,
                *self._words,
                "</svg>\n",
            ]
        )


def _tspan(span: Span) -> str:
    classes = " ".join(name for name, holds in (("code", span.is_code), ("bold", span.is_bold)) if holds)
    return f'<tspan class="{classes}">{escape(span.text)}</tspan>' if classes else escape(span.text)


def _before(start: Point, end: Point) -> Point:
    """Returns the point on the last straight part at which the head of an arrow begins."""
    (x, y), (to_x, to_y) = start, end
    return to_x - _HEAD * _sign(to_x - x), to_y - _HEAD * _sign(to_y - y)


def _head(start: Point, end: Point) -> str:
    x, y = _before(start, end)
    across = 0 if start[0] != end[0] else _HEAD / 2, 0 if start[1] != end[1] else _HEAD / 2
    corners = [end, (x + across[0], y + across[1]), (x - across[0], y - across[1])]
    path = "L".join(f"{_number(one)} {_number(other)}" for one, other in corners)
    return f'<path class="head" d="M{path}Z"/>'


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _number(number: float) -> str:
    return f"{round(number, 1):g}"


def _style() -> str:
    rules = [
        f"text{{font-family:{_FONT};font-size:{SIZE}px}}",
        f".code{{font-family:{_CODE_FONT};font-size:{SMALL}px}}",
        ".bold{font-weight:600}",
        ".line{fill:none;stroke-width:1.5}",
        ".lifeline{fill:none;stroke-width:1;stroke-dasharray:3 3}",
        ".group{stroke-dasharray:5 3}",
    ]
    dark = "".join(f"\n  {rule}" for rule in _colors(1))
    return "\n".join([*rules, *_colors(0), f"@media (prefers-color-scheme:dark){{{dark}\n}}"])


def _colors(mode: int) -> list[str]:
    rules = [f".{kind}{{fill:{colors[mode][0]};stroke:{colors[mode][1]}}}" for kind, colors in KINDS.items()]
    color = {name: colors[mode] for name, colors in COLORS.items()}
    return [
        *rules,
        f".background{{fill:{color['background']}}}",
        f".text{{fill:{color['text']}}}",
        f".muted{{fill:{color['muted']}}}",
        f".line,.lifeline{{stroke:{color['line']}}}",
        f".head{{fill:{color['line']}}}",
    ]
