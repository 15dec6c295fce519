"""Listeners that collect or replace the reads of variables in a function with a custom gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mirrored._jax.boxes import Box
from mirrored.runtime.ambient import ReadableVariable, listen, unlisten

if TYPE_CHECKING:
    import jax

    from mirrored.tape.no_derivative import Key
    from mirrored.tape.trace import TapeTrace


class ReadCollector:
    """A read listener that collects the trainable variables that are read, with the values that were returned."""

    def __init__(self) -> None:
        self.variables: dict[int, Any] = {}
        self.everything: dict[int, Any] = {}  # also the variables that are not trainable
        self._values: list[Any] = []

    def on_read(self, variable: ReadableVariable, value: jax.Array) -> Any:
        self.everything[id(variable)] = variable
        if variable.trainable:
            self.variables[id(variable)] = variable
            self._values.append(value)
        return value

    def keys_of(self, tape: TapeTrace) -> set[Key]:
        """Returns the keys by which `tape` tracks the values that were read.

        A value that several tapes track is a box within a box, so each payload is looked up, too.
        """
        keys: set[Key] = set()
        for value in self._values:
            while True:
                _, found, _ = tape.split_operands([value])
                keys.update(found)
                if type(value) is not Box:
                    break
                value = value.payload
        return keys

    def tracks(self, value: object) -> bool:
        """Returns False, because this listener does not record operations."""
        return False

    def on_write(self, variables: Sequence[ReadableVariable]) -> None:
        pass

    def on_reassign(self, variable: ReadableVariable, value: object) -> None:
        pass


class _Substitution(ReadCollector):
    """A read listener that replaces the values of some variables, so that a JAX transform sees them as arguments."""

    def __init__(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        super().__init__()
        self._given = {id(variable): value for variable, value in zip(variables, values, strict=True)}

    def on_read(self, variable: ReadableVariable, value: jax.Array) -> Any:
        return self._given.get(id(variable), value)


@contextmanager
def substituted_reads(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Runs the block with reads of the variables that return these values."""
    listener = _Substitution(variables, values)
    listen(listener)
    try:
        yield
    finally:
        unlisten(listener)


@contextmanager
def collected_reads() -> Iterator[ReadCollector]:
    """Runs the block, and yields the variables that the block reads."""
    collector = ReadCollector()
    listen(collector)
    try:
        yield collector
    finally:
        unlisten(collector)
