"""Reads a figure from its TOML file, and draws it.

A file has a `title`, a `description` for readers who do not see the figure, and a `body`: a list of boxes (see
`figures.layout.Box`), one below the other. Optional: `arrows` between boxes, a `legend`, and `packages` for the figure
of layers, which precede the body. A file with a `timeline` has rows of bars instead (see `figures.timeline`), with
`ticks` and `marks`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from figures.canvas import WIDTH, Area, Canvas
from figures.layers import boxes_of_levels, levels_in
from figures.layout import Box, Drawing
from figures.text import LINE, spans_of, width_of
from figures.timeline import draw_timeline, legend_of_timeline

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "docs" / "figures"
LEVELS: Final = ROOT / "tests" / "test_layers.py"
_KEYS: Final = {"title", "description", "body", "arrows", "legend", "packages", "body_arrows", "margin", "gap"}
_KEYS_OF_TIMELINES: Final = {"title", "description", "timeline", "ticks", "marks"}
_MARGIN: Final = 16
_SWATCH: Final = 14


def drawn(path: Path) -> str:
    """Returns a figure as the text of an SVG file.

    Raises:
        ValueError: The file has an unknown key, or text overlaps other text or an arrow, or is cut off.
    """
    source = tomllib.loads(path.read_text(encoding="utf-8"))
    keys = _KEYS_OF_TIMELINES if "timeline" in source else _KEYS
    if unknown := source.keys() - keys:
        raise ValueError(f"{path.name} has unknown keys: {', '.join(sorted(unknown))}")
    canvas = Canvas()
    if "timeline" in source:
        area = draw_timeline(canvas, source, Area(_MARGIN, _MARGIN, WIDTH - 2 * _MARGIN, 0))
        return _finished(canvas, source, legend_of_timeline(source), area, path)
    drawing = Drawing(canvas)
    body = _body(source)
    margin = source.get("margin", _MARGIN)
    area = Area(margin, _MARGIN, WIDTH - 2 * margin, body.height(WIDTH - 2 * margin))
    drawing.box(body, area)
    for arrow in source.get("arrows", ()):
        drawing.arrow(arrow)
    return _finished(canvas, source, source.get("legend", ()), area, path)


def _finished(
    canvas: Canvas, source: Mapping[str, Any], legend: Sequence[Mapping[str, str]], area: Area, path: Path
) -> str:
    """Draws the legend, checks the figure, and returns its text."""
    height = _legend(canvas, legend, area) + _MARGIN
    faults = faults_of(canvas, height)
    if faults:
        raise ValueError(f"{path.name}: {'; '.join(faults)}")
    return canvas.svg(height, source["title"], " ".join(source["description"].split()))


def _body(source: Mapping[str, Any]) -> Box:
    levels = boxes_of_levels(levels_in(LEVELS), source["packages"]) if "packages" in source else []
    boxes = [*levels, *(Box.read(box) for box in source.get("body", ()))]
    return Box(kind="none", column=boxes, arrows=source.get("body_arrows", False), gap=source.get("gap"))


def _legend(canvas: Canvas, entries: Sequence[Mapping[str, str]], above: Area) -> float:
    """Draws the legend in one line below the figure, and returns where it ends."""
    if not entries:
        return above.bottom
    x, y = above.x, above.bottom + 12
    for entry in entries:
        line = spans_of(entry["text"])
        canvas.box(Area(x, y + 2, _SWATCH, _SWATCH), entry["kind"])
        canvas.text(line, x + _SWATCH + 6, y + 14)
        x += _SWATCH + 6 + width_of(line) + 20
    return y + LINE


def faults_of(canvas: Canvas, height: float) -> list[str]:
    """Returns the text that is cut off, overlaps other text, or is crossed by an arrow."""
    figure = Area(0, 0, WIDTH, height)
    faults = [f"{text!r} is cut off" for area, text in canvas.texts if not figure.contains(area)]
    faults += ["an arrow is cut off" for segment in canvas.segments if not figure.contains(segment)]
    for (area, text), (other, its_text) in itertools.combinations(canvas.texts, 2):
        if area.overlaps(other):
            faults.append(f"{text!r} overlaps {its_text!r}")
    for (area, text), segment in itertools.product(canvas.texts, canvas.segments):
        if area.overlaps(segment):
            faults.append(f"an arrow crosses {text!r}")
    return faults
