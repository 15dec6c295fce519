"""The text of a program: as the soak runs it, and as a script that stands alone."""

from __future__ import annotations

import inspect
from typing import Any, Final

import jax
import numpy as np

from soak import compare
from soak.kinds import KINDS
from soak.program import Program

_END: Final = """

# ------------------------------------------------------------------------------------------------------------------
# What single-device JAX gives for the same program.
EXPECTED = {expected}

{compare}

if __name__ == "__main__":
    found = program()
    problem = difference(found, EXPECTED)
    print("equal" if problem is None else f"DIFFERENT: {{problem}}")
    raise SystemExit(problem is not None)
"""


def body_of(program: Program) -> str:
    """The text that defines `program()`."""
    return KINDS[program.kind].body(program)


def standalone(program: Program, expected: dict[str, Any], problem: str) -> str:
    """A script without the tool: the program, the expected result, and the comparison.

    Args:
        program: The program.
        expected: Its expected result.
        problem: What was found, for the first lines.
    """
    source = inspect.getsource(compare).replace("from __future__ import annotations\n", "")
    first = problem.strip().splitlines()[-1] if problem.strip() else "?"
    changes = "\n".join(f"    {name} = {value!r}" for name, value in program.changes().items())
    head = f'r"""Found by tools/soak.py: {first[:300]}\n\n{changes}\n"""\n'
    return head + body_of(program) + _END.format(expected=repr(_plain(expected)), compare=source)


def _plain(value: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist() if hasattr(leaf, "shape") else leaf, value)
