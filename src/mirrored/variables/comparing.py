"""Comparing what workers bring to a variable of all of them: unequal copies must not come to be."""

from __future__ import annotations

from typing import Any

import jax

from mirrored._jax.traces import is_tracer
from mirrored.collectives.host_allgather import check_equal
from mirrored.variables.assignment import Assignment


def check_same_everywhere(assignment: Assignment, value: Any) -> None:
    """Refuses a value from this worker's own memory that is another one on other workers.

    What lies on the devices of all workers was computed by all of them, and passes.

    Raises:
        DisagreementError: Naming the workers.
    """
    device_assignment = assignment.variable.device_assignment
    if device_assignment is None or not device_assignment.spans_processes or is_tracer(value):
        return
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return
    check_equal(
        assignment.called,
        {f"the value for variable {assignment.variable.name!r}": value},
        rule="a variable has one value on all workers",
        remedy="compute it from the same data on all workers, or from what strategy.reduce or gather returns",
    )
