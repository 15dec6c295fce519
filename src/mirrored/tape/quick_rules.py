"""A fast cache of rules for concrete arrays, keyed by the identity of the arrays' types.

Hashing a type takes longer than everything else that an eager tape does for an operation. The results of a compiled
function have the same type object in every call, so its identity is a sufficient key. For a new type object, the
operation looks up its rule by the value of the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrored._jax.boxes import Array
from mirrored._jax.programs import aval_of, context_key
from mirrored.tape.operation import Operation, Rule

# An entry holds a rule, which its operation also holds, and the types of its operands.
MOST = 4096


class QuickRules:
    """A cache of rules by operation and operand types. It is cleared when JAX's settings change or when it is full.

    Args:
        most: The maximum number of entries.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        # Settings and entries are one tuple, so that a thread with other settings cannot replace only one of them
        # between the check and the lookup.
        self._state: tuple[Any, dict[Any, tuple[Rule, Any]]] = (None, {})

    def find(self, operation: Operation, values: Sequence[Any], watched: tuple[int, ...]) -> Rule:
        """Returns the rule of `operation` for arrays and Python numbers, of which those at `watched` are tracked."""
        settings, entries = self._state
        now = context_key()
        if now != settings or len(entries) > self._most:
            entries = {}
            self._state = now, entries
        kinds = [value.aval if type(value) is Array else type(value) for value in values]
        key = operation, watched, *map(id, kinds)
        entry = entries.get(key)
        if entry is None:
            rule = operation.rule(tuple(map(aval_of, values)), watched)
            # The entry keeps the types alive: an id identifies an object only during its lifetime.
            entry = entries[key] = rule, kinds
        return entry[0]

    def __len__(self) -> int:
        return len(self._state[1])
