"""Checks the positional arguments that methods of strategies pass on to a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirrored.errors import ArgumentError
from mirrored.values.distributed_values import DistributedValues


def as_arguments(called: str, args: Any, spelled: str) -> tuple[Any, ...]:
    """Returns positional arguments as a tuple; refuses one array in their place, which has rows, and a dict or string.

    Args:
        called: The method, for the message.
        args: What the caller passed.
        spelled: How to call the method with a single argument x.

    Raises:
        ArgumentError: `args` is an array, a variable, a per-replica value, a dict or a string.
    """
    if not hasattr(args, "shape") and not isinstance(args, (DistributedValues, Mapping, str, bytes)):
        return tuple(args)
    raise ArgumentError(
        called,
        found=f"args is of type {type(args).__name__}",
        rule="args must be a list or tuple of the function's positional arguments",
        remedy=f"write {spelled} for a single argument x",
    )
