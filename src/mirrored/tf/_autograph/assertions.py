"""Evaluates ``assert`` in code that AutoGraph has converted."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mirrored.tf._autograph.truth import is_traced, truth
from mirrored.tf._debugging import require
from mirrored.tf._tensors import as_tensor


def asserted(value: object, message: Callable[[], object]) -> bool:
    """Returns the condition of an ``assert`` as a Python bool; a traced tensor is checked as by `tf.debugging.Assert`.

    If the tensor is known only at run time, the result is True, and a failure is logged when the program runs.

    Args:
        value: The condition.
        message: Evaluates the message of the statement; None if it has none. As in TensorFlow, it is called while
            tracing if the condition is known only at run time.
    """
    known = truth(value)
    if known is not None:
        return known
    caller = sys._getframe(1)
    text = message()
    require(
        f"assert ({caller.f_code.co_filename}:{caller.f_lineno})",
        as_tensor(value),
        None if text is None or is_traced(text) else str(text),
        "the condition must be True",
        [],
    )
    return True
