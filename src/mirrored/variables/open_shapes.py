"""Records the shapes of variables for which a traced program is valid, if assignments may change these shapes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mirrored.runtime.ambient import ambient
from mirrored.runtime.staged_values import Bookkeeping

if TYPE_CHECKING:
    from mirrored.variables.storage import VariableStorage


class OpenShapes(dict[int, "tuple[weakref.ref[VariableStorage], tuple[int, ...]]"], Bookkeeping):
    """Record of the variables with unknown dimensions that a trace has used, and of their shapes at that time.

    The keys are the variables' numbers (`serial`), and the entries hold weak references to the variables. A program
    has one shape per variable, so it is valid only while these shapes are the current ones. A program that uses no such
    variable has an empty record.
    """

    def note(self, variable: VariableStorage, shape: tuple[int, ...]) -> None:
        """Records the shape of a variable that the trace uses, unless a shape is already recorded."""
        self.setdefault(variable.serial, (weakref.ref(variable), shape))

    def changed(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Returns the recorded and the current shape of a variable whose shape has changed; None if none has.

        A variable that is deleted keeps its shape: only a new trace could use another one in its place.
        """
        for reference, shape in self.values():
            variable = reference()
            if variable is not None and variable.component_shape != shape:
                return shape, variable.component_shape
        return None


class HasOpenShapes(Protocol):
    """A traced program that records for which variable shapes it is valid."""

    shapes: OpenShapes


P = TypeVar("P", bound=HasOpenShapes)


def valid_program(programs: Iterable[P]) -> P | None:
    """Returns the first program that is valid for the current shapes of the variables that it uses, or None."""
    for program in programs:
        if not program.shapes or program.shapes.changed() is None:
            return program
    return None


class ShapeOfValue:
    """Descriptor of `component_shape` for variables whose shape may change: returns the current shape of one copy.

    It records the use of the shape in the trace of a compiled function. All other variables have an attribute of this
    name, which takes precedence.
    """

    def __get__(self, variable: Any, owner: type) -> Any:
        if variable is None:
            return self
        shape = variable._array.shape[1:] if variable.per_replica else variable._array.shape
        shapes = ambient().shapes
        if shapes is not None:
            shapes.note(variable, shape)
        return shape
