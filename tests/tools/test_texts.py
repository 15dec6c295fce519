"""The list of all texts: it has the summaries, the messages with their parts, and the pages."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import texts

TOOL = Path(__file__).parents[2] / "tools" / "texts.py"
MODULE = '''"""A module."""
def shown(value):
    """Returns the value.

    More."""
    raise ArgumentError("shown", found=f"the value {value!r}" + " here", rule="none", remedy="another")
def _hidden():
    """Is private."""
    warnings.warn(f"{1} is odd", stacklevel=2)
class Kind:
    """A kind."""
    def method(self):
        """Does
        something."""
'''


def run(*arguments: str) -> list[str]:
    made = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=True, timeout=120)
    return made.stdout.splitlines()


def test_public_definitions_are_listed_with_the_first_paragraph_of_their_docstrings():
    found = list(texts.summaries(texts.SOURCE / "mirrored" / "kinds.py", ast.parse(MODULE)))
    assert found == [
        ("mirrored.kinds", "A module."),
        ("mirrored.kinds.shown", "Returns the value."),
        ("mirrored.kinds.Kind", "A kind."),
        ("mirrored.kinds.Kind.method", "Does something."),
    ]


def test_messages_show_their_parts_and_expressions_in_braces():
    assert [text for _, text in texts.messages(ast.parse(MODULE))] == [
        "shown; **found** the value {value} here; **rule** none; **remedy** another",
        "warning: {1} is odd",
    ]


@pytest.mark.long
def test_the_whole_list_has_everything_and_a_sample_is_that_of_its_seed():
    whole = run()
    assert {"# Summaries", "# Messages", "# Pages"} <= set(whole)
    assert any(line.startswith("- `mirrored.strategies.strategy.Strategy.run`: ") for line in whole)
    assert any(line.startswith("- docs/architecture.md: Architecture") for line in whole)
    first = run("--sample", "5", "--seed", "3")
    assert first == run("--sample", "5", "--seed", "3")
    assert len(first) == 6
    assert first[0].startswith("seed 3: 5 of ")
    assert first[1:] != run("--sample", "5", "--seed", "4")[1:]
