"""Matches the gradients of different replicas by variable, also between workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from mirrored.collectives.host_allgather import host_allgather
from mirrored.errors import DisagreementError
from mirrored.optimizers.checks import Pair, no_gradients_error
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.variables import Variable
from mirrored.variables.storage import MADE_ALONE, distinct_names


def aligned(
    replicas: Sequence[Sequence[Pair]], runner: ReplicaRunner, called: str
) -> tuple[list[Variable], list[list[Any]], tuple[str, ...]]:
    """Returns the variables for which any replica has a gradient, their gradients, and the other variables' names.

    The variables have one order on all workers.

    Raises:
        ArgumentError: No replica has any gradient.
        DisagreementError: A worker lacks a variable for which another worker has a gradient.
    """
    variables = {id(variable): variable for pairs in replicas for _, variable in pairs}
    given = [{id(variable): gradient for gradient, variable in pairs} for pairs in replicas]
    rows = {key: [gradients.get(key) for gradients in given] for key in variables}
    dtypes = {key: _dtype(row) for key, row in rows.items()}
    if runner.device_assignment.spans_processes:
        dtypes = _of_all_workers(variables, dtypes, called)
    absent = tuple(variables[key].name for key in variables if dtypes.get(key) is None)
    present = [(variables[key], dtype) for key, dtype in dtypes.items() if dtype is not None]
    if not present:
        raise no_gradients_error(absent, called)
    completed = [_completed(rows[id(variable)], variable, dtype) for variable, dtype in present]
    return [variable for variable, _ in present], completed, absent


def _dtype(row: Sequence[Any]) -> str | None:
    return next((str(gradient.dtype) for gradient in row if gradient is not None), None)


def _completed(row: Sequence[Any], variable: Variable, dtype: str) -> list[Any]:
    return [jnp.zeros(variable.component_shape, dtype) if gradient is None else gradient for gradient in row]


def _of_all_workers(
    variables: Mapping[int, Variable], dtypes: Mapping[int, str | None], called: str
) -> dict[int, str | None]:
    """Returns each variable's gradient dtype (None without a gradient on any worker), in the same order on all workers.

    Every worker must reduce the same arrays in the same order. A variable without a gradient here may have one on
    another worker.
    """
    names = distinct_names(variables.values(), alone=MADE_ALONE)
    counts: Counter[str] = Counter()
    places: dict[int, int] = {}
    for key, one in variables.items():
        if one.number_of_name is None:
            places[key] = counts[one.common_name]
            counts[one.common_name] += 1
    # Names with the number of a variable in the job are exact. Others are numbered in the order of creation: they are
    # those of the same variables on all workers only if all workers pass as many variables of the name, and if the
    # order in which they pass them differs from the order of creation on all workers alike.
    own = {
        names[key]: [dtypes[key], one.common_name, counts[one.common_name], places[key]]
        if one.number_of_name is None
        else [dtypes[key], names[key], 1, 0]
        for key, one in variables.items()
    }
    everyone = host_allgather(called, "which variables have gradients", own)
    found: dict[str, str | None] = {}
    for name in dict.fromkeys(name for worker in everyone for name in worker):
        theirs = [worker.get(name, (None, name, 0, 0)) for worker in everyone]
        found[name] = next((dtype for dtype, *_ in theirs if dtype is not None), None)
        if found[name] is not None:
            _check_counts(called, [common for _, common, _, _ in theirs], [count for _, _, count, _ in theirs])
            _check_order(called, theirs[0][1], [place for *_, place in theirs])
    keys = {name: key for key, name in names.items()}
    return {keys[name]: dtype for name, dtype in found.items() if name in keys}


def _check_counts(called: str, names: Sequence[str], counts: Sequence[int]) -> None:
    """Raises an error if the workers have passed different numbers of variables with the same name."""
    other = next((worker for worker, count in enumerate(counts) if count != counts[0]), None)
    if other is not None:
        name = names[0 if counts[0] else other]
        raise DisagreementError(
            called,
            found=f"worker 0 passed {_variables(counts[0])} named {name!r}, worker {other} passed {counts[other]}",
            rule="each worker must pass all variables for which a replica of any worker has a gradient",
            remedy="pass a variable without a gradient with None: "
            f"{called}(zip(tape.gradient(loss, variables), variables)) does so",
        )


def _check_order(called: str, name: str, places: Sequence[int]) -> None:
    """Raises an error if the workers have created the variables of one name, by themselves, in different orders."""
    other = next((worker for worker, place in enumerate(places) if place != places[0]), None)
    if other is not None:
        raise DisagreementError(
            called,
            found=f"worker {other} has created the variables named {name!r} in another order than worker 0, or passes "
            "them in another order",
            rule="variables that were created outside a scope are matched between workers by name, and those of one "
            "name in the order of creation",
            remedy="create them in strategy.scope(), or give each a name of its own",
        )


def _variables(count: int) -> str:
    return f"{count} variable{'s' * (count != 1)}"
