"""Functions for `merge_call` that a decorator wraps."""

from __future__ import annotations

import functools
from typing import Any


def decorator(value: Any) -> Any:
    """A function whose result the wrapper multiplies by a number that it closes over."""

    def scaled(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(strategy: Any) -> Any:
            return function(strategy) * value

        return wrapper

    return scaled(lambda strategy: 10.0)
