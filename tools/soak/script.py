"""The text of a program: as the soak test runs it, and as a standalone script."""

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
# The result of the same program in single-device JAX.
EXPECTED = {expected}

{compare}

if __name__ == "__main__":
    found = program()
    problem = difference(found, EXPECTED)
    print("equal" if problem is None else f"DIFFERENT: {{problem}}")
    raise SystemExit(problem is not None)
"""


def body_of(program: Program) -> str:
    """Returns the text that defines `program()`."""
    return KINDS[program.kind].body(program)


def standalone(program: Program, expected: dict[str, Any], problem: str) -> str:
    """Returns a script that runs without the tool: the program, the expected result, and the comparison.

    Args:
        program: The program.
        expected: Its expected result.
        problem: The finding, for the first lines.
    """
    source = inspect.getsource(compare).replace("from __future__ import annotations\n", "")
    first = problem.strip().splitlines()[-1] if problem.strip() else "?"
    changes = "\n".join(f"    {name} = {value!r}" for name, value in program.changes().items())
    head = f'r"""Found by tools/soak.py: {first[:300]}\n\n{changes}\n"""\n'
    return head + body_of(program) + _END.format(expected=repr(_plain(expected)), compare=source)


def _plain(value: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist() if hasattr(leaf, "shape") else leaf, value)
