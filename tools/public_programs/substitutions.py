"""Recorded changes to the text of a program: renamed names of TensorFlow, replaced data, and smaller sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence


class SubstitutionError(ValueError):
    """A recorded substitution does not apply to the text of its program."""


def renamed(text: str, renames: Sequence[Sequence[str]]) -> str:
    """Returns the text with all matches of patterns replaced; a pattern without a match changes nothing.

    Args:
        text: The source of a program.
        renames: Pairs of a regular expression and its replacement, in the order of their application.
    """
    for pattern, replacement in renames:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def substituted(text: str, substitutions: Sequence[Sequence[str]], program: str) -> str:
    """Returns the text with parts replaced.

    Args:
        text: The source of a program.
        substitutions: Pairs of the replaced text, all occurrences of which are replaced, and the new one.
        program: The name of the program, for the error.

    Raises:
        SubstitutionError: A replaced text does not occur.
    """
    for old, new in substitutions:
        if old not in text:
            raise SubstitutionError(f"{program} has no {old!r}: the selection records a substitution of another commit")
        text = text.replace(old, new)
    return text
