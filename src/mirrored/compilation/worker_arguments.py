"""Compares the arguments of a compiled program between workers, and places them on the devices of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax

from mirrored._jax.frames import user_lines
from mirrored.collectives.host_allgather import check_equal, host_allgather
from mirrored.errors import DisagreementError
from mirrored.variables.placement import placed
from mirrored.watchdog.collective_log import collective_log

_MOST_BETWEEN: Final = 1024


class WorkerArguments:
    """Checks that all workers call the same program with consistent arguments.

    At the first call, all workers must call the same program with arguments of the same shapes. Arguments, captured
    arrays and plain variables that have one value for all replicas must be equal. Arguments are compared again at calls
    2, 4, 8, ..., 1024, and at every 1024th call: a comparison costs a millisecond.

    Args:
        name: The name of the function.
        captured: The arrays of this worker that the program has captured.
        variables: The variables that the program reads.
    """

    def __init__(self, name: str, captured: Sequence[Any] = (), variables: Sequence[Any] = ()) -> None:
        self._name = name
        self._captured = captured
        self._variables = variables
        self._calls = 0
        self._place = f"call {name}"

    def passed(self, token: Any) -> None:
        """Records in the collective log that the program was dispatched; `token` is one of its results."""
        collective_log.depart(token)

    def arguments(self, arrays: Sequence[Any], device_assignment: Any, program: str) -> list[Any]:
        """Returns the arguments, placed on the devices of all workers.

        Args:
            arrays: The arguments' arrays on this worker.
            device_assignment: The devices of the replicas.
            program: A digest of the program.

        Raises:
            DisagreementError: Shapes or values differ between workers, or another worker calls something else.
        """
        own = self.arrive(arrays, program)
        return [
            placed(array, device_assignment, per_replica=False) if place in own else array
            for place, array in enumerate(arrays)
        ]

    def arrive(self, arrays: Sequence[Any], program: str) -> dict[int, Any]:
        """Compares arguments if a comparison is due (see `arguments`), and records the call in the collective log.

        Returns:
            The arguments that are only in this worker's memory, by position.
        """
        own = {place: array for place, array in enumerate(arrays) if _is_own(array)}
        self._calls += 1
        if self._calls == 1:
            self._compare_all(arrays, own, program)
            self._captured = ()
        elif self._calls & (self._calls - 1) == 0 or self._calls % _MOST_BETWEEN == 0:
            self._compare(own)
        collective_log.arrive(self._place, user_lines())
        return own

    def _compare_all(self, arrays: Sequence[Any], own: dict[int, Any], program: str) -> None:
        shapes = [f"{array.dtype}{list(array.shape)}" for array in arrays]
        gathered = host_allgather(self._name, f"call {self._name} for the first time", [shapes, program])
        everyone = [theirs for theirs, _ in gathered]
        for worker, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise DisagreementError(
                    self._name,
                    found=f"arrays {', '.join(everyone[0])} on worker 0, {', '.join(theirs)} on worker {worker}",
                    rule="all workers run one program, with arguments of the same shapes",
                    remedy="distribute the dataset with last_batch='pad' (or 'drop'), and take the same number of "
                    "batches on all workers",
                )
        self._compare_programs([theirs for _, theirs in gathered])
        self._compare(own)
        self._compare_captured()

    def _compare(self, own: dict[int, Any]) -> None:
        check_equal(
            self._name,
            {f"array {place} of its arguments": array for place, array in own.items()},
            rule="an argument that is not a per-replica value has one value for all replicas of all workers",
            remedy="pass values that differ between workers by strategy.distribute_values_from_function or a "
            "distributed dataset",
        )

    def _compare_captured(self) -> None:
        values = {f"captured array {place}": array for place, array in enumerate(self._captured)}
        for variable in self._variables:
            if variable.device_assignment is None and _is_own(value := variable.borrowed()):
                values[f"variable {variable.name!r}"] = value
        check_equal(
            self._name,
            values,
            rule="a captured array, or a variable created outside a scope, has one value for all workers",
            remedy="create the variable in strategy.scope(), and compute the array from the same data on all workers; "
            "pass values that differ between workers by strategy.distribute_values_from_function",
        )

    def _compare_programs(self, programs: Sequence[str]) -> None:
        for worker, theirs in enumerate(programs):
            if theirs != programs[0]:
                raise DisagreementError(
                    self._name,
                    found=f"the program on worker {worker} ({theirs}) is not the program on worker 0 ({programs[0]})",
                    rule="all workers run the same program: the same operations, shapes and constants",
                    remedy=f"check the version of the code on worker {worker}, and look for Python branches and "
                    "constants that depend on the worker",
                )


def _is_own(array: Any) -> bool:
    """Returns whether `array` is only in this worker's memory."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable
