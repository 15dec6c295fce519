"""Checks the variables that a function creates while it is traced: user code must keep a reference to them.

A function can create its variables on the first call and keep them. If it created a variable on *every* call, plain
Python would create a new one each time, but a compiled program would reuse the same one. Such a function is an error:
every variable that a trace creates must be kept, and a second trace must create none. Python's garbage collector tells
whether a variable is kept: an object other than our bookkeeping must refer to it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from mirrored._jax.capture import CaptureTracer
from mirrored.errors import VariableError
from mirrored.runtime.variable_store import Bookkeeping, Held


def refuse_forgotten(created: Sequence[Any], called: str) -> None:
    """Raises an error for a created variable to which only the trace refers.

    Args:
        created: The variables created in the trace.
        called: The name of the function, for the message.

    Raises:
        VariableError: A variable was not kept.
    """
    if not created:
        return
    kept: set[int] = set()
    asked = tuple(created)  # itself a referrer, which Python 3.13 reports and earlier versions do not
    for referrer in gc.get_referrers(*asked):
        if referrer is not asked and not isinstance(referrer, (Bookkeeping, CaptureTracer, Held)):
            kept.update(map(id, gc.get_referents(referrer)))
    for variable in created:
        # The referrer of an inline attribute is the object itself, because such an object has no attribute dictionary.
        if id(variable) not in kept:
            raise VariableError(
                called,
                found=f"it creates variable {variable.name!r} and does not keep it",
                rule="a compiled function creates its variables once, and reuses them in every call",
                remedy="store it where the next call finds it (if self.w is None: self.w = Variable(...)), "
                "or create it outside",
            )


def refuse_created_again(created: Sequence[Any], called: str) -> None:
    """Raises an error for variables that the second trace of a function creates: every call would create them.

    Args:
        created: The variables created in the second trace.
        called: The name of the function, for the message.

    Raises:
        VariableError: The second trace has created a variable.
    """
    if created:
        raise VariableError(
            called,
            found=f"it creates variable {created[0].name!r} again when it is called again",
            rule="a compiled function creates its variables once, and reuses them in every call",
            remedy="create it only if it does not exist yet (if self.w is None: self.w = Variable(...)), "
            "or create it outside",
        )
