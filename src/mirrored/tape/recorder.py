"""`Recorder`, which holds the records and watched values of one tape."""

from __future__ import annotations

from typing import Any

from mirrored._jax.boxes import Box
from mirrored._jax.programs import aval_of, is_inexact
from mirrored._jax.traces import is_tracer
from mirrored.tape.record import AliasRecord, Key, Record, new_key


class Recorder:
    """The records and watched values of a tape since it was created or reset.

    Attributes:
        records: The records of operations, in order.
        known: Tracked objects that are not boxes of this tape, by `id`: arrays of the user, tracers of the outer trace,
            and boxes of an outer tape. Each entry holds the key and the object, which keeps the object alive so that
            its id is not reused.
        variables: The variables that were read or watched, by `id`, with their keys.
        reads: The variables by the `id` of the tracer that a read returned.
        explicit: The ids of variables that were passed to `watch`.
        watch_accessed_variables: Whether reading a trainable variable watches it.
        persistent: Whether records keep their inputs, which are needed to differentiate gradients that are computed
            inside the tape's own block.
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
        """Drops the records and tracked objects. The set of watched variables is kept."""
        self.records.clear()
        self.known.clear()
        self.reads.clear()

    def key_of(self, value: Any, owner: Any) -> Key | None:
        """Returns the key of an array, or None if it is not tracked."""
        if type(value) is Box and value.owner is owner:
            return value.key
        entry = self.known.get(id(value))
        return None if entry is None else entry[0]

    def watch(self, value: Any, owner: Any) -> None:
        """Tracks an object of the user from now on."""
        if self.key_of(value, owner) is not None:
            return
        key = new_key()
        self.known[id(value)] = (key, value)
        if type(value) is Box:
            # An outer tape that does not track the value passes on the payload of the box.
            self.known.setdefault(id(value.payload), (key, value.payload))

    def watch_variable(self, variable: Any) -> None:
        """Tracks every later read of `variable`."""
        self.explicit.add(id(variable))
        self.variable_key(variable)

    def watches(self, variable: Any) -> bool:
        """Returns whether reads of `variable` are tracked."""
        return (self.watch_accessed_variables and variable.trainable) or id(variable) in self.explicit

    def variable_key(self, variable: Any) -> Key:
        """Returns the key of `variable`, which receives the cotangents of all its reads."""
        entry = self.variables.get(id(variable))
        if entry is None:
            entry = self.variables[id(variable)] = (new_key(), variable)
        return entry[0]

    def read(self, variable: Any, value: Any, owner: Any) -> Any:
        """Records a read of `variable`. Returns the value for the reader."""
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
        """Returns the same value as an object that this tape does not track.

        An assigned value may be tracked as the result of an operation. Reading the variable gives an independent value.
        """
        if self.key_of(value, owner) is None:
            return value
        if type(value) is Box:
            return value.payload if value.owner is owner else Box(value.owner, value.payload, value.key)
        return value if owner.has_concrete_parent(value) else owner.copied(value)
