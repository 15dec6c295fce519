"""Copies of optimizers as Python objects: of one without state; slots belong to variables, which a copy has not."""

from __future__ import annotations

import copy
from typing import Any, Final

from mirrored.errors import ArgumentTypeError

_SHARED: Final = ("_rule", "_compute")  # immutable


def copied(optimizer: Any, memo: dict[int, Any]) -> Any:
    """An optimizer of its own with the same settings.

    Raises:
        ArgumentTypeError: It has made state already.
    """
    if optimizer.made().scalars or optimizer.made().groups:
        raise not_copied("copy", optimizer)
    made = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    vars(made).update({name: copy.deepcopy(one, memo) for name, one in vars(optimizer).items() if name not in _SHARED})
    vars(made).update({name: vars(optimizer)[name] for name in _SHARED})
    return made


def not_copied(called: str, optimizer: Any) -> ArgumentTypeError:
    """The error for an optimizer that cannot be copied so."""
    return ArgumentTypeError(
        f"{called} of an {type(optimizer).__name__} optimizer".replace("an Optimizer optimizer", "an Optimizer"),
        found=f"{optimizer!r}",
        rule="the state of an optimizer belongs to the variables that it trains, and a copy would have others, or none",
        remedy="make another optimizer with the same arguments; to give it this one's state save a "
        "mirrored.checkpoint.Checkpoint(model=..., optimizer=...) and restore it into the new objects",
    )
