"""Text of figures: its width, and its lines.

A viewer chooses the font. Widths are those of DejaVu Sans, which is wider than the other usual sans-serif fonts, so
text that fits here fits everywhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

SIZE: Final = 13
"""The font size in pixels."""
SMALL: Final = 12
"""The font size of code, which is set in a monospaced font."""
LINE: Final = 18
"""The height of a line."""

# Widths in thousandths of the font size.
_CHARACTERS: Final = {
    275: "'",
    278: "ijl",
    295: "IJ",
    318: " ,.",
    337: "/:;\\|",
    352: "f",
    361: "-",
    392: "t",
    401: "!()[]",
    411: "r",
    500: "*_`",
    525: "sz",
    531: "?",
    557: "Lc",
    579: "kF",
    592: "vxy",
    615: "aeoPTY",
    636: "0123456789bdghnpqu$ES{}",
    698: "ABCKRVXZ",
    752: "HNU",
    790: "DGOQ&",
    838: "#+<=>^~wM",
    974: "m%W@",
}
_WIDTHS: Final = {character: width / 1000 for width, characters in _CHARACTERS.items() for character in characters}
_UNKNOWN: Final = 1.0
_BOLD: Final = 1.12
_MONOSPACED: Final = 0.602


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a line in one font.

    Attributes:
        text: The characters.
        is_code: Whether it is code.
        is_bold: Whether it is bold.
    """

    text: str
    is_code: bool = False
    is_bold: bool = False

    @property
    def width(self) -> float:
        """The width in pixels."""
        if self.is_code:
            return len(self.text) * _MONOSPACED * SMALL
        width = sum(_WIDTHS.get(character, _UNKNOWN) for character in self.text) * SIZE
        return width * _BOLD if self.is_bold else width


Line = tuple[Span, ...]


def width_of(line: Line) -> float:
    """Returns the width of a line in pixels."""
    return sum(span.width for span in line)


def spans_of(text: str, *, is_bold: bool = False) -> Line:
    """Returns the spans of a text in which code is written in backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        raise ValueError(f"a backtick has no counterpart in {text!r}")
    return tuple(Span(part, bool(i % 2), is_bold) for i, part in enumerate(parts) if part)


def wrapped(text: str, width: float, *, is_bold: bool = False) -> list[Line]:
    """Breaks a text at spaces into lines of at most `width` pixels.

    Raises:
        ValueError: A word is wider than that.
    """
    lines: list[Line] = []
    line: Line = ()
    for word in _words(spans_of(text, is_bold=is_bold)):
        if width_of(word) > width:
            raise ValueError(f"{_plain(word)!r} is {width_of(word):.0f} pixels wide, and has {width:.0f}")
        longer = (*line, Span(" "), *word) if line else word
        if line and width_of(longer) > width:
            lines.append(_joined(line))
            longer = word
        line = longer
    return [*lines, _joined(line)] if line else lines


def _words(spans: Line) -> Iterator[Line]:
    """Yields the words of a line. A word can consist of several spans: code and the comma after it."""
    word: Line = ()
    for span in spans:
        for piece in re.split("( )", span.text):
            if piece == " ":
                if word:
                    yield word
                word = ()
            elif piece:
                word = (*word, dataclasses.replace(span, text=piece))
    if word:
        yield word


def _joined(line: Line) -> Line:
    """Returns the line with adjacent spans of one font as one span."""
    joined: list[Span] = []
    for i, span in enumerate(line):
        between = span.text == " " and i + 1 < len(line)
        font = line[i + 1] if between and joined and _font(line[i + 1]) == _font(joined[-1]) else span
        if joined and _font(joined[-1]) == _font(font):
            joined[-1] = dataclasses.replace(joined[-1], text=joined[-1].text + span.text)
        else:
            joined.append(span)
    return tuple(joined)


def _font(span: Span) -> tuple[bool, bool]:
    return span.is_code, span.is_bold


def _plain(line: Line) -> str:
    return "".join(span.text for span in line)
