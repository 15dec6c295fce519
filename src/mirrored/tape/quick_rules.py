"""Rules of operations on concrete arrays, found by the identity of the arrays' types.

The results of a compiled function share their type from call to call, and hashing a type takes longer than all that an
eager tape does besides for an operation. A type of an array that was made otherwise is met once; then the operation
finds its rule by what the type says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrored._jax.boxes import Array
from mirrored._jax.programs import aval_of, context_key
from mirrored.tape.operation import Operation, Rule

# An entry holds a rule, which its operation holds as well, and the types of its operands.
MOST = 4096


class QuickRules:
    """Rules by operation and operands, forgotten when JAX's settings change or when there are too many.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        # One object, so that a thread with other settings cannot come between the look at them and the look-up.
        self._state: tuple[Any, dict[Any, tuple[Rule, Any]]] = (None, {})

    def find(self, operation: Operation, values: Sequence[Any], watched: tuple[int, ...]) -> Rule:
        """The rule of `operation` for arrays and Python numbers, of which those at `watched` are tracked."""
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
            # With the kinds, which must live as long as their identities are in the key.
            entry = entries[key] = rule, kinds
        return entry[0]

    def __len__(self) -> int:
        return len(self._state[1])
