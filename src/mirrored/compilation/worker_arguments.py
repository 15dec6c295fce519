"""A compiled program that several workers run together: their arguments, compared and brought to all devices."""

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
    """What the workers make sure of before they run a program together.

    At the first call all of them must have come, with arguments of the same shapes, and with the same values where an
    argument, a captured array or a plain variable is one for all replicas. Arguments are compared again at the calls 2,
    4, 8, ..., 1024, and at every 1024th: comparing costs a millisecond.

    Args:
        name: The function's.
        captured: The arrays of this worker that the program has captured.
        variables: Those that it reads.
    """

    def __init__(self, name: str, captured: Sequence[Any] = (), variables: Sequence[Any] = ()) -> None:
        self._name = name
        self._captured = captured
        self._variables = variables
        self._calls = 0
        self._place = f"call {name}"

    def passed(self, token: Any) -> None:
        """Notes that the program was handed to the devices; `token` is one of its results."""
        collective_log.depart(token)

    def arguments(self, arrays: Sequence[Any], device_assignment: Any, program: str) -> list[Any]:
        """The arguments as a program over all devices takes them.

        Args:
            arrays: As this worker has them.
            device_assignment: Of the replicas.
            program: A digest of what is computed.

        Raises:
            DisagreementError: They are of other shapes on other workers, or not equal; or another worker is elsewhere.
        """
        own = self.arrive(arrays, program)
        return [
            placed(array, device_assignment, per_replica=False) if place in own else array
            for place, array in enumerate(arrays)
        ]

    def arrive(self, arrays: Sequence[Any], program: str) -> dict[int, Any]:
        """Compares arguments, if it is time; those that lie in this worker's memory only, by place. See `arguments`."""
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
        told = host_allgather(self._name, f"call {self._name} for the first time", [shapes, program])
        everyone = [theirs for theirs, _ in told]
        for worker, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise DisagreementError(
                    self._name,
                    found=f"arrays {', '.join(everyone[0])} on worker 0, {', '.join(theirs)} on worker {worker}",
                    rule="all workers run one program, for arguments of the same shapes",
                    remedy="distribute the dataset with last_batch='pad' (or 'drop'), and take the same number of "
                    "batches on all workers",
                )
        self._compare_programs([theirs for _, theirs in told])
        self._compare(own)
        self._compare_captured()

    def _compare(self, own: dict[int, Any]) -> None:
        check_equal(
            self._name,
            {f"array {place} of its arguments": array for place, array in own.items()},
            rule="an argument that is no per-replica value is one value for all replicas of all workers",
            remedy="what differs between workers goes through strategy.distribute_values_from_function or a "
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
            rule="an array that a function captures, and a variable made out of scope, is one value for all workers",
            remedy="make the variable in strategy.scope(); compute the array from the same data on all workers; what "
            "differs between workers goes through strategy.distribute_values_from_function",
        )

    def _compare_programs(self, programs: Sequence[str]) -> None:
        for worker, theirs in enumerate(programs):
            if theirs != programs[0]:
                raise DisagreementError(
                    self._name,
                    found=f"what it computes on worker {worker} ({theirs}) is not what it computes on worker 0 "
                    f"({programs[0]})",
                    rule="all workers run the same program: the same operations, shapes and constants",
                    remedy=f"look at the version of the program on worker {worker}, and for Python branches and "
                    "constants that depend on the worker",
                )


def _is_own(array: Any) -> bool:
    """Whether it lies in this worker's memory only."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable
