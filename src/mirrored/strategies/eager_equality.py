"""Compares the replicas' values in an eager run: bits within a worker; dtypes, shapes and numbers between workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrored._jax.arrays import key_data
from mirrored.collectives.host_allgather import host_allgather
from mirrored.errors import DisagreementError
from mirrored.strategies.checks import would_differ_error

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable


def bits_of(value: object) -> bytes:
    """Returns the dtype, shape and bits of an array on one device."""
    array = np.asarray(key_data(value))
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def check_equal_bits(variable: Variable, components: Sequence[Any], where: Sequence[str]) -> None:
    """Checks that replicas have assigned equal values to a mirrored variable.

    Args:
        variable: The variable.
        components: Each replica's value.
        where: The line of each replica's assignment; empty if it has none.

    Raises:
        ReplicaDivergenceError: The bits differ.
    """
    bits = [bits_of(component) for component in components]
    if all(one == bits[0] for one in bits):
        return
    components = [key_data(component) for component in components]
    found = ", ".join(
        f"replica {i}: {np.array2string(np.asarray(c), threshold=4)}" for i, c in enumerate(components[:4])
    )
    missing = [i for i, line in enumerate(where) if not line]
    unassigned = f"; replicas {missing} did not assign it" if missing else ""
    raise would_differ_error(variable, where, f": {found}{unassigned}")


# Decides together with the other workers which Python numbers all replicas share.
#
# Python has one object for all equal small integers, and one for True: a number that a replica computes can be the same
# object as an argument of the run, on some workers only. So workers exchange these numbers.


def is_number(value: object) -> bool:
    """Returns whether a value is a Python number or NumPy bool, which is compared by value instead of by identity."""
    return isinstance(value, (bool, int, float, complex, np.bool_))


def shared_by_workers(columns: Sequence[Sequence[Any]], shared: Sequence[bool]) -> list[bool]:
    """Returns, for each leaf of a result, whether the replicas of all workers share the leaf.

    They share it if the replicas of this worker do (`shared`). A number must also be equal on all workers. This
    is a collective operation: all workers must call the function.

    Args:
        columns: The components of each leaf on this worker.
        shared: Whether the replicas of this worker share each leaf.
    """
    own = [
        f"{type(column[0]).__name__} {column[0]!r}" if is_shared and is_number(column[0]) else None
        for column, is_shared in zip(columns, shared, strict=True)
    ]
    everyone = host_allgather(
        "Strategy.run", "compare the numbers that replicas return or merge (in an eager run)", own
    )
    return [
        is_shared and all(theirs[place : place + 1] == [own[place]] for theirs in everyone if own[place] is not None)
        for place, is_shared in enumerate(shared)
    ]


def one_type(place: int, types: Sequence[list[Any] | None]) -> list[Any] | None:
    """Returns the dtype and shape of one array of an all-reduce, after checking that all workers agree.

    Args:
        place: The position of the array.
        types: Its dtype and shape on each worker; None for a worker that lacks the array.

    Returns:
        The dtype and shape; None if no worker has the array.

    Raises:
        DisagreementError: Two workers have different dtypes or shapes.
    """
    given = {worker: kind for worker, kind in enumerate(types) if kind is not None}
    first = next(iter(given), 0)
    for worker, kind in given.items():
        if kind != given[first]:
            raise DisagreementError(
                "Strategy.run",
                found=f"array {place} of an all-reduce is {_shown(given[first])} on worker {first} and {_shown(kind)} "
                f"on worker {worker}",
                rule="an all-reduce combines arrays of one shape and dtype, which all replicas pass in the same order",
                remedy="pass the same list of arrays on all workers, with None for an array that a replica lacks",
            )
    return given.get(first)


def _shown(kind: list[Any]) -> str:
    return f"{kind[0]}{kind[1]}"
