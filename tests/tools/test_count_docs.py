"""The table in `docs/is_this_for_me.md` has the counts of today."""

from __future__ import annotations

import re

import count_docs
import pytest


def test_the_table_has_the_counts():
    text = (count_docs.DOCS / "is_this_for_me.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|", text.partition("## The documentation, by counts")[2], re.MULTILINE)
    found = count_docs.counts()
    assert {name: int(count) for name, count in rows} == found, "run tools/count_docs.py --write"
    outdated = text.replace(f"| pages | {found['pages']} |", "| pages | 1 |")
    assert outdated != text
    assert count_docs.written(outdated, found) == text
    with pytest.raises(ValueError, match="the table has 0 rows 'pages'"):
        count_docs.written("", found)


def test_names_without_an_example_are_errors_warnings_and_constants():
    others = [one for one in count_docs.documented() if not count_docs.has_example(one)]
    assert all(not callable(one) or issubclass(one, (Exception, Warning)) for one in others)
    assert f"other {len(others)} names" in (count_docs.DOCS / "is_this_for_me.md").read_text(encoding="utf-8")


def test_an_example_is_a_prompt_or_a_fence():
    def with_prompt():
        """>>> 1"""

    def without():
        """Returns nothing."""

    assert count_docs.has_example(with_prompt)
    assert not count_docs.has_example(without)
    assert not count_docs.has_example(1.5)
