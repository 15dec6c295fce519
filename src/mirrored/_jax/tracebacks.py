"""Tracebacks without internal frames, by JAX's own filter: it leaves out this package's frames like JAX's.

`jax_traceback_filtering` (JAX_TRACEBACK_FILTERING) decides: ``off`` shows all frames.

Serves JAX 0.10 to 0.12: `jax._src.traceback_util.api_boundary` and `register_exclusion`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from jax._src import traceback_util as _traceback_util

F = TypeVar("F", bound=Callable[..., Any])

_traceback_util.register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def boundary(function: F) -> F:
    """`function` as a boundary: errors that pass it show the user's frames below it only."""
    bounded: F = _traceback_util.api_boundary(function)
    return bounded
