"""Checks that all workers assign the same value to a variable: unequal values would make its copies diverge."""

from __future__ import annotations

from typing import Any

import jax

from mirrored._jax.traces import is_tracer
from mirrored.collectives.host_allgather import check_equal
from mirrored.variables.assignment import Assignment


def check_same_everywhere(assignment: Assignment, value: Any) -> None:
    """Refuses a host value or process-local array that differs between workers.

    An array over the devices of all workers passes without a comparison: one program on all workers computed it.

    Raises:
        DisagreementError: The values differ; the message names the workers.
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
        remedy="compute it from the same data on all workers, or from the result of strategy.reduce or strategy.gather",
    )
