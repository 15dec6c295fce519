"""The memory of one tape."""

from __future__ import annotations

from typing import Any

from mirrored._jax.boxes import Box
from mirrored._jax.programs import aval_of, is_inexact
from mirrored._jax.traces import is_tracer
from mirrored.tape.record import AliasRecord, Key, Record, new_key


class Recorder:
    """What a tape has watched and recorded since it was made or reset.

    Attributes:
        records: The operations, in order.
        known: By identity, the objects that are not boxes of this tape and yet tracked: the user's own arrays, tracers
            of the surrounding trace, boxes of a surrounding tape. Each with its key, kept alive, so that its identity
            stays its own.
        variables: By identity, each variable that was read or watched and its key.
        reads: By identity of the tracer that a read gave, the variable.
        explicit: Identities of the variables that were watched by hand.
        watch_accessed_variables: Whether trainable variables are tracked when they are read.
        persistent: Whether records keep their inputs, for derivatives of gradients taken inside the tape's own block.
    """

    __slots__ = ("explicit", "known", "persistent", "reads", "records", "variables", "watch_accessed_variables")

    def __init__(self, persistent: bool, watch_accessed_variables: bool) -> None:
        self.persistent = persistent
        self.watch_accessed_variables = watch_accessed_variables
        self.records: list[Record] = []
        self.known: dict[int, tuple[Key, Any]] = {}
        self.variables: dict[int, tuple[Key, Any]] = {}
        self.reads: dict[int, Any] = {}
        self.explicit: set[int] = set()

    def forget(self) -> None:
        """Drops what was recorded; which variables were watched stays known."""
        self.records.clear()
        self.known.clear()
        self.reads.clear()

    def key_of(self, value: Any, owner: Any) -> Key | None:
        """The key of an array, if it is tracked."""
        if type(value) is Box and value.owner is owner:
            return value.key
        entry = self.known.get(id(value))
        return None if entry is None else entry[0]

    def watch(self, value: Any, owner: Any) -> None:
        """Tracks the user's own object from now on."""
        if self.key_of(value, owner) is not None:
            return
        key = new_key()
        self.known[id(value)] = (key, value)
        if type(value) is Box:
            # A surrounding tape that does not track the value hands on what is in the box.
            self.known.setdefault(id(value.payload), (key, value.payload))

    def watch_variable(self, variable: Any) -> None:
        """Tracks every later read of `variable`."""
        self.explicit.add(id(variable))
        self.variable_key(variable)

    def watches(self, variable: Any) -> bool:
        """Whether a read of `variable` is tracked."""
        return (self.watch_accessed_variables and variable.trainable) or id(variable) in self.explicit

    def variable_key(self, variable: Any) -> Key:
        """The key that all reads of `variable` lead to."""
        entry = self.variables.get(id(variable))
        if entry is None:
            entry = self.variables[id(variable)] = (new_key(), variable)
        return entry[0]

    def read(self, variable: Any, value: Any, owner: Any) -> Any:
        """Records a read of `variable`; the value to hand to the reader."""
        if not is_inexact(aval_of(value)):
            return value
        known = self.reads.get(id(value))
        if known is variable:
            return value
        key = new_key()
        value = self.untracked(value, owner)
        if owner.has_concrete_parent(value):
            value = Box(owner, value, key)
        else:
            self.known[id(value)] = (key, value)
            if is_tracer(value):
                self.reads[id(value)] = variable
        record = AliasRecord((self.variable_key(variable),))
        record.out_keys = (key,)
        self.records.append(record)
        return value

    def untracked(self, value: Any, owner: Any) -> Any:
        """The same value as an object that this tape does not track: a read is a new thing, whatever was assigned."""
        if self.key_of(value, owner) is None:
            return value
        if type(value) is Box:
            return value.payload if value.owner is owner else Box(value.owner, value.payload, value.key)
        return value if owner.has_concrete_parent(value) else owner.copied(value)
