from __future__ import annotations

import jax
import jax.numpy as jnp

from mirrored._jax.source_lines import user_line, user_lines


def helper() -> str:
    return user_lines()  # HELPER


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


def test_the_callers_of_the_program_are_named_innermost_first():
    def caller() -> str:
        return helper()  # CALLER

    told = caller()  # TEST
    assert told == (
        f"test_source_lines.py:{line_of('HELPER')} in helper, "
        f"called at test_source_lines.py:{line_of('CALLER')} in caller, "
        f"called at test_source_lines.py:{line_of('TEST')} in test_the_callers_of_the_program_are_named_innermost_first"
    )


def test_each_line_has_its_own_name():
    told = {helper() for _ in range(3)}
    assert len(told) == 1
    assert helper() not in told


def test_what_jax_and_the_standard_library_call_in_between_is_left_out():
    told = []

    @jax.jit
    def traced(x):
        told.append((helper(), user_line()))  # TRACED
        return x

    jnp.square(traced(1.0))
    lines, line = told[0]
    assert "jax" not in lines.replace("test_what_jax", "")
    assert lines.count(", called at ") == 2
    assert line == f"test_source_lines.py:{line_of('TRACED')} in traced"
