"""Copies optimizers that have no state yet.

Slots belong to variables, which a copy does not have. So an optimizer with state cannot be copied.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from mirrored.errors import ArgumentTypeError

# Immutable. Sharing `_compute`, a jitted function, lets copies also share its compilation cache.
_SHARED: Final = ("_rule", "_compute")


def copied(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Returns an independent optimizer with the same settings.

    Raises:
        ArgumentTypeError: The optimizer already has state.
    """
    if optimizer.made().scalars or optimizer.made().groups:
        raise not_copied("copy", optimizer)
    made = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    vars(made).update({name: copy.deepcopy(one, memo) for name, one in vars(optimizer).items() if name not in _SHARED})
    vars(made).update({name: vars(optimizer)[name] for name in _SHARED})
    return made


def not_copied(called: str, optimizer: Any) -> ArgumentTypeError:
    """Returns the error for an optimizer that `called` cannot copy."""
    return ArgumentTypeError(
        f"{called} of an {type(optimizer).__name__} optimizer".replace("an Optimizer optimizer", "an Optimizer"),
        found=f"{optimizer!r}",
        rule="optimizer state belongs to the variables that it trains; a copy would train other variables, or none",
        remedy="create another optimizer with the same arguments; to transfer this one's state, save a "
        "mirrored.checkpoint.Checkpoint(model=..., optimizer=...) and restore it into the new objects",
    )
