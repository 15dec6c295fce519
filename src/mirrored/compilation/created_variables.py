"""Variables created while a function is traced: they must outlive the trace in the user's hands.

A function may create its variables on the first call and keep them. One that creates a variable on *every* call would
get a fresh one each time as plain Python, but one and the same as a compiled program; so it is refused: a second trace
after one that has created variables must create none, and each must have been kept. Whether a variable has been kept is
asked of Python's garbage collector: somebody other than our own bookkeeping must refer to it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from mirrored._jax.capture import CaptureTracer
from mirrored.errors import VariableError
from mirrored.runtime.variable_store import Bookkeeping, Held


def refuse_forgotten(created: Sequence[Any], called: str) -> None:
    """Refuses variables that nobody but the trace refers to.

    Args:
        created: The variables made in the trace.
        called: The function, for the message.

    Raises:
        VariableError: One was not kept.
    """
    if not created:
        return
    kept: set[int] = set()
    asked = tuple(created)  # itself a referrer, which Python 3.13 tells and earlier ones don't
    for referrer in gc.get_referrers(*asked):
        if referrer is not asked and not isinstance(referrer, (Bookkeeping, CaptureTracer, Held)):
            kept.update(map(id, gc.get_referents(referrer)))
    for variable in created:
        # In an object with its attributes inline, the attribute dictionary is not there to be found.
        if id(variable) not in kept:
            raise VariableError(
                called,
                found=f"it creates variable {variable.name!r} and does not keep it",
                rule="a compiled function creates its variables once: on every call it would need another one",
                remedy="keep it where the next call finds it (if self.w is None: self.w = Variable(...)), "
                "or create it outside",
            )


def refuse_created_again(created: Sequence[Any], called: str) -> None:
    """Refuses variables that the second trace of a function creates: every call would create them.

    Args:
        created: The variables made in the second trace.
        called: The function, for the message.

    Raises:
        VariableError: There is one.
    """
    if created:
        raise VariableError(
            called,
            found=f"it creates variable {created[0].name!r} again when it is called again",
            rule="a compiled function creates its variables once: on every call it would need another one",
            remedy="create it only if there is none yet (if self.w is None: self.w = Variable(...)), "
            "or create it outside",
        )
