from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from figures.canvas import COLORS, KINDS, WIDTH, Area, Canvas
from figures.cli import stale
from figures.layers import boxes_of_levels, levels_in
from figures.layout import Box, Drawing
from figures.source import LEVELS as LEVELS_FILE
from figures.source import ROOT, SOURCES, drawn, faults_of
from figures.text import spans_of, width_of, wrapped
from figures.timeline import source_of_log

from test_layers import LEVELS, SOURCE

FIGURES = sorted(SOURCES.glob("*.toml"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
SVG = "{http://www.w3.org/2000/svg}"


def name_of(path: Path) -> str:
    return path.stem


def lines_of(figure: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(figure.with_suffix(".svg")).iter(f"{SVG}text"))


def notes_of(figure: Path) -> list[str]:
    """The modules that a figure names, as its source writes them."""
    notes = re.findall(r'note = "([^"]*)"', figure.read_text(encoding="utf-8"))
    return [part.strip() for note in notes for part in note.split(",")]


def test_the_figures_are_current():
    assert stale() == [], "run python tools/figures.py"


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_a_page_shows_the_figure_with_a_description(figure):
    image = re.compile(rf"!\[([^\]]+)\]\(([\w./]*figures/{figure.stem}\.svg)\)")
    shown = [(page, *found.groups()) for page in PAGES for found in image.finditer(page.read_text(encoding="utf-8"))]
    assert shown
    for page, description, target in shown:
        assert (page.parent / target).is_file()
        assert len(description.split()) > 5


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_the_figure_has_a_title_and_a_description(figure):
    root = ElementTree.parse(figure.with_suffix(".svg")).getroot()
    assert [child.tag for child in root[:2]] == [f"{SVG}title", f"{SVG}desc"]
    assert all(child.text for child in root[:2])
    assert root.attrib["aria-labelledby"].split() == [child.attrib["id"] for child in root[:2]]


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_the_figure_needs_no_other_file_and_is_readable(figure):
    text = figure.with_suffix(".svg").read_text(encoding="utf-8")
    assert not re.search(r"<script|<image|<use|href|@import|@font-face|url\(", text)
    assert f'width="{WIDTH}"' in text
    assert min(int(size) for size in re.findall(r"font-size:(\d+)px", text)) >= 12
    assert "prefers-color-scheme:dark" in text


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_every_module_that_the_figure_names_exists(figure):
    missing = [note for note in notes_of(figure) if not (SOURCE / note).exists()]
    assert not missing


def luminance(color: str) -> float:
    """The relative luminance of a color, as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_has_enough_contrast(kind, mode):
    for name in ("text", "muted"):
        dark, bright = sorted(luminance(color) for color in (COLORS[name][mode], KINDS[kind][mode][0]))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_the_figure_of_layers_shows_the_packages_of_each_level():
    names = {name or "mirrored/__init__.py" for level in LEVELS for name in level}
    lines = [("".join(line.itertext()), float(line.attrib["y"])) for line in lines_of(SOURCES / "layers.toml")]
    heights = {int(text): y for text, y in lines if text.isdigit()}
    shown: dict[int, set[str]] = {number: set() for number in heights}
    for text, y in lines:
        if text in names:
            shown[min(heights, key=lambda number, y=y: abs(heights[number] - y))].add(text)
    assert shown == {i: {name or "mirrored/__init__.py" for name in level} for i, level in enumerate(LEVELS, 1)}
    assert sorted(heights, key=heights.__getitem__, reverse=True) == sorted(heights), (
        "the lowest level is at the bottom"
    )


def test_every_package_of_the_figure_of_layers_exists():
    names = [name for level in levels_in(LEVELS_FILE) for name in level]
    assert len(names) > 30
    missing = [
        name for name in names if name and not (SOURCE / name).is_dir() and not (SOURCE / f"{name}.py").is_file()
    ]
    assert not missing


def test_the_levels_are_those_that_are_enforced():
    assert [set(level) for level in levels_in(LEVELS_FILE)] == LEVELS


# The checks themselves: each sees what it is there to see.


def test_a_package_without_a_level_or_a_purpose_is_refused():
    with pytest.raises(ValueError, match="in the levels or in the figure alone: tape, values"):
        boxes_of_levels([["values"]], {"tape": {"purpose": "records", "kind": "blue"}})


def test_a_file_without_levels_is_refused(tmp_path):
    path = tmp_path / "test_layers.py"
    path.write_text("OTHER = []")
    with pytest.raises(ValueError, match="does not define LEVELS"):
        levels_in(path)


LOG = """
{"at": 100.0, "event": "started", "worker": 0}
{"at": 101.0, "event": "arrived", "worker": 0}
{"at": 102.0, "event": "stepped", "worker": 0, "phases": [["waiting", 101.0, 0.5], ["first step", 101.5, 0.5]]}
{"at": 110.0, "event": "lost", "worker": 0}
{"at": 110.1, "event": "started", "worker": 0}
{"at": 112.0, "event": "leave", "worker": 1}
{"at": 113.0, "event": "arrived", "worker": 0}
{"at": 115.0, "event": "stepped", "worker": 0, "phases": [["meeting", 113.0, 0.5], ["creating", 113.5, 1.0]]}
"""


def test_the_timeline_of_a_log(tmp_path):
    log = tmp_path / "elastic.jsonl"
    log.write_text(LOG.strip())
    source = tomllib.loads(source_of_log(log, 109.5, "A", "B"))
    assert source["timeline"] == {
        "worker 0": [
            ["trains", -1.0, 0.5],
            ["starts", 0.6, 3.5],
            ["joins", 3.5, 4.0],
            ["restores", 4.0, 5.0],
            ["trains", 5.5, 6.5],
        ]
    }
    assert [mark["at"] for mark in source["marks"]] == [0.0, 2.5]


def figure_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "figure.toml"
    path.write_text(f'title = "A"\ndescription = "B"\n{text}', encoding="utf-8")
    return drawn(path)


def test_a_figure_is_as_high_as_its_boxes(tmp_path):
    one = figure_of(tmp_path, 'body = [{text = "one line"}]')
    two = figure_of(tmp_path, 'body = [{text = "one line"}, {text = "one line"}]')
    heights = [float(re.search(r'height="([\d.]+)"', text)[1]) for text in (one, two)]
    assert heights[1] - 32 == 2 * (heights[0] - 32) + 10


def test_an_unknown_key_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown keys: boxes"):
        figure_of(tmp_path, "boxes = []")
    with pytest.raises(TypeError, match="colour"):
        figure_of(tmp_path, 'body = [{text = "a", colour = "red"}]')


def test_a_label_that_is_cut_off_is_refused(tmp_path):
    long = "a long label " * 5
    with pytest.raises(ValueError, match="'a long label .* is cut off"):
        figure_of(tmp_path, f'body_arrows = true\nbody = [{{text = "a"}}, {{text = "b", via = "{long}"}}]')


def test_text_that_overlaps_is_seen():
    canvas = Canvas()
    canvas.text(spans_of("one"), 10, 20)
    canvas.text(spans_of("other"), 10, 30)
    assert faults_of(canvas, 100) == ["'one' overlaps 'other'"]


def test_an_arrow_through_text_is_seen():
    canvas = Canvas()
    canvas.text(spans_of("one"), 10, 20)
    canvas.arrow([(20, 0), (20, 50)])
    assert faults_of(canvas, 100) == ["an arrow crosses 'one'"]


def test_a_word_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="'incomprehensible' is .* pixels wide"):
        wrapped("an incomprehensible word", 50)


def test_a_text_is_wrapped_between_words_and_keeps_its_fonts():
    text = "reads `variables.Variable`, which holds *values*, and more of them"
    lines = wrapped(text, 200)
    assert len(lines) > 1
    assert all(width_of(line) <= 200 for line in lines)
    assert " ".join("".join(span.text for span in line) for line in lines) == text.replace("`", "")
    assert [span.text for line in lines for span in line if span.is_code] == ["variables.Variable"]


def test_a_backtick_without_counterpart_is_refused():
    with pytest.raises(ValueError, match="no counterpart"):
        spans_of("a `b")


@pytest.mark.parametrize(
    ("route", "corners"),
    [
        ({"from": "a.right", "to": "b.left"}, [(40, 15), (60, 15)]),
        ({"from": "a.bottom", "to": "c.top"}, [(25, 20), (25, 50)]),
        ({"from": "a.bottom", "to": "d.top"}, [(25, 20), (25, 35), (75, 35), (75, 50)]),
        ({"from": "a.right", "to": "d.left"}, [(40, 15), (50, 15), (50, 55), (60, 55)]),
        ({"from": "b.right", "to": "d.right"}, [(90, 15), (104, 15), (104, 55), (90, 55)]),
        ({"from": "a.right", "to": "d.top"}, [(40, 15), (75, 15), (75, 50)]),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_arrows_follow_horizontal_and_vertical_lines(route, corners):
    canvas = Canvas()
    drawing = Drawing(canvas)
    for name, (x, y) in {"a": (10, 10), "b": (60, 10), "c": (10, 50), "d": (60, 50)}.items():
        drawing.box(Box(id=name), Area(x, y, 30, 10))
    drawing.arrow(route)
    pairs = zip(corners, corners[1:], strict=False)
    assert canvas.segments == [
        Area(min(x, to_x), min(y, to_y), abs(x - to_x), abs(y - to_y)) for (x, y), (to_x, to_y) in pairs
    ]
