"""Log messages about compiled functions that are traced often, or that run eagerly for a batch."""

from __future__ import annotations

import logging
import os
from typing import Final

_MANY_RETRACES: Final = 5
_MANY = (
    " (retrace {}: each one compiles the function again. Pass values that change as arrays of one shape and dtype: a "
    "number as jnp.asarray(x), batches with last_batch='pad'. Create objects and strategies once, outside the loop)"
)
_log = logging.getLogger("mirrored")


def log_retrace(reason: str, retraces: int) -> None:
    """Logs why a function is traced again: as information at first, as a warning from the fifth retrace on."""
    level = logging.WARNING if retraces >= _MANY_RETRACES else logging.INFO
    _log.log(level, "%s%s", reason, _MANY.format(retraces) if level > logging.INFO else "")


def log_ragged(function: object, name: str) -> None:
    """Logs the warning that a function runs eagerly, because its per-replica batches differ in shape.

    Args:
        function: The Python function; its place in the program is named if it is a lambda.
        name: Its name.
    """
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        name = f"<lambda> ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    _log.warning(
        "%s got a batch whose per-replica batches differ in shape, so this step runs eagerly, one replica "
        "after another; distribute the dataset with "
        "last_batch='pad', whose elements are (batch, mask), or with 'drop', to keep every step compiled",
        name,
    )
