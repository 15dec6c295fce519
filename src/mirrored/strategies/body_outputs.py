"""`BodyOutputs`: the flat outputs of the traced body of a compiled run, as named sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_Column = Sequence[Any]
"""The components of one output, one per local replica."""


class BodyOutputs(NamedTuple):
    """The outputs of the traced body of a compiled run, grouped by purpose, such as results and assigned values.

    A section is a list of columns, and a column has the components of one output, one per local replica. The body
    returns all components as one flat list, in the order of the sections: `flat` builds it, and `split` finds the
    sections again. The program of a run returns the first two sections. The others are traced only so that the checks
    of the run find them in the jaxpr.

    Attributes:
        results: The arrays that the replicas return.
        assigned: The new values of the variables that the replicas assign.
        gradients: The gradients that optimizers sum over replicas.
        enclosed: The arrays that functions of `merge_call` close over.
        joined: The components of mirrored variables that merges read as one value.
        unchanged: What a replica has assigned to random keys, and what it reads: two values of one replica.
    """

    results: Sequence[_Column]
    assigned: Sequence[_Column]
    gradients: Sequence[_Column] = ()
    enclosed: Sequence[_Column] = ()
    joined: Sequence[_Column] = ()
    unchanged: Sequence[_Column] = ()

    def flat(self) -> list[Any]:
        """Returns all outputs of all local replicas as one list, in the order in which the traced body returns them."""
        return [component for section in self for column in section for component in column]

    def split(self, flat: Sequence[Any]) -> BodyOutputs:
        """Converts a flat list, such as a jaxpr's output variables, to a `BodyOutputs` with this object's structure.

        The inverse of `flat`.
        """
        values = iter(flat)
        sections = [[[next(values) for _ in column] for column in section] for section in self]
        return BodyOutputs(*sections)

    @property
    def without_values(self) -> BodyOutputs:
        """The same sections with None in place of the outputs, for `split` after the trace, when these are invalid."""
        return self.split([None] * len(self.flat()))

    @property
    def of_program(self) -> BodyOutputs:
        """The outputs that the compiled run returns: results and assigned values, but not the outputs for checks."""
        return BodyOutputs(self.results, self.assigned)
