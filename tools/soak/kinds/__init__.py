"""The kinds of programs: for each, how to write it as a script, and its expected result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from soak.kinds import functional, functions, keras_fit, training
from soak.program import Program


class Kind(NamedTuple):
    """One kind of program.

    Attributes:
        body: Returns the text of a program: it defines `program()`, which returns a JSON-like record.
        expected: Returns the expected record, from the program and (for sources in random order) from the record.
        refusals: Returns parts of error messages that are allowed in place of a result.
    """

    body: Callable[[Program], str]
    expected: Callable[[Program, dict[str, Any]], dict[str, Any]]
    refusals: Callable[[Program], tuple[str, ...]]


KINDS: Final = {
    "training": Kind(training.body, training.expected, training.refusals),
    "functional": Kind(functional.body, functional.expected, functional.refusals),
    "functions": Kind(functions.body, functions.expected, functions.refusals),
    "keras_fit": Kind(keras_fit.body, keras_fit.expected, keras_fit.refusals),
}
