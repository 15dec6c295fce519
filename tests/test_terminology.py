"""The text and the identifiers of the project use the terms of docs/glossary.md: retired ones do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = sorted(
    [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.toml"),
        ROOT / "README.md",
        ROOT / "examples" / "README.md",
    ]
)

# Phrases, not words: `np.roll`, `tf.signal.frame` and "layout" in XLA's sense are fine.
PHRASES = (
    r"for good",
    r"leave (it |this |that |them )?away",
    r"so many (steps|times)",
    r"its kin",
    r"of ours",
    r"by hand",
    r"(comes?|came|come) to differ",
    r"mended?",
    r"way back",
    r"taken? (back|apart)",
    r"put together again",
    r"meeting[_ ]places?",
    r"farewell",
    r"last words",
    r"without a word",
    r"Telling a",
    r"so that one cannot",
    r"may not come",
    r"has (not )?come",
    r"stranger",
    r"nobody",
    r"proof of synchrony",
    r"ordered tree",
    r"lifeline of",
)
IDENTIFIERS = (
    "BodySession",
    "EagerSession",
    "FunctionFrame",
    "Lifeline",
    "MeetingPlaces",
    "ReplicaFrame",
    "Rehearsal",
    "Standing",
    "bordered",
    "frame_of",
    "leave_on_exceptions",
    "make_layout",
    "measure_sums",
    "rehearse",
    "say_farewell_by",
    "take_apart",
    "walled",
    "watch_workers",
)
RETIRED = (re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE), re.compile(rf"\b(?:{'|'.join(IDENTIFIERS)})\b"))


def retired_in(text: str) -> list[str]:
    """The retired terms in a text, each with its line. A phrase may be wrapped over two lines."""
    joined = re.sub(r"\s*\n\s*(# |\"|f\")?", " ", text)
    return [found.group() for term in RETIRED for found in term.finditer(joined)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_retired_term_is_used(path):
    assert not retired_in(path.read_text(encoding="utf-8")), "see docs/glossary.md for the term to use"


def test_retired_terms_are_seen():
    assert retired_in("It waits for good.") == ["for good"]
    assert retired_in("the values came\n    # to differ") == ["came to differ"]
    assert retired_in("def take_apart(x): ...") == ["take_apart"]


def test_words_in_other_senses_are_let_through():
    assert not retired_in("np.roll(x, 1); tf.signal.frame(x); the memory layout; becomes nobodyelse")
