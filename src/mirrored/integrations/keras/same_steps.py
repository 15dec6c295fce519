"""Checks that all workers of a job run the same Keras steps, and enters the steps in the watchdog's collective log.

The settings of an optimizer, a loss or a layer that are no variables are constants of a step. A compiled step is
compared as a program, once. An uncompiled step (``run_eagerly=True``) has no program, so the variables are compared
after some of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax

from mirrored._jax.inlining import captured_arrays, digest_of
from mirrored._jax.source_lines import user_lines
from mirrored._typing import PyTree
from mirrored.collectives.host_allgather import check_equal
from mirrored.compilation.dispatch import check_same_program
from mirrored.watchdog.collective_log import collective_log

_MOST_BETWEEN: Final = 1024


class SamePrograms:
    """Compares the compiled steps of all workers; each program is compared once, before its first run.

    A worker with a new program compares it where the others enter the step itself in their collective logs, if they
    have compared their programs before. The logs differ there, so the watchdog ends the job within seconds.

    Args:
        called: The name of the step, for messages.
    """

    def __init__(self, called: str) -> None:
        self._called = called
        self._place = f"call {called}"
        self._line = ""
        self._known: set[str] = set()

    def arrive(self) -> None:
        """Records the start of a Keras step in the watchdog's log of collectives."""
        self._line = user_lines()
        collective_log.arrive(self._place, self._line)

    def passed(self, results: PyTree) -> None:
        """Logs the return of a step call in the collective log; the step counts as running until `results` are ready.

        Args:
            results: The results of the step; None if the call failed.
        """
        collective_log.depart(next((one for one in jax.tree.leaves(results) if isinstance(one, jax.Array)), None))

    def compare(self, trace: Callable[[], Any], data: PyTree) -> Any:
        """Traces the step and returns the trace; raises an error on all workers if the workers' traces differ.

        Args:
            trace: Traces the step of this worker.
            data: The batch.

        Raises:
            DisagreementError: They differ, in operations, shapes, constants or captured arrays.
        """
        collective_log.cancel()
        traced = trace()
        constants = traced.jaxpr.consts
        program = digest_of(traced.jaxpr, constants)
        if program not in self._known:  # else JAX has dropped it from its cache, perhaps on this worker only
            check_same_program(self._called, jax.tree.leaves(data), program)
            captured = captured_arrays(traced.jaxpr, constants)
            check_equal(
                self._called,
                {f"captured array {place}": array for place, array in enumerate(captured)},
                rule="an array that a step captures must be equal on all workers",
                remedy="compute the array from the same data on all workers, or keep it in a weight of the model",
            )
            self._known.add(program)
        collective_log.arrive(self._place, self._line)
        return traced


class SameResults:
    """Runs an uncompiled step, and compares the variables between workers after calls 1, 2, 4, 8, and so on.

    These are calls 1, 2, 4, 8, ..., 1024, and every 1024th: a comparison copies all variables to the host. It does not
    find workers that compute the losses of their own rows in different ways: their mean is equal on all workers.

    Args:
        step: The step, from (state, batch) to (logs, state).
        called: The name of the step, for messages.
        named: Returns the values of a state by the paths of their variables.
    """

    def __init__(self, step: Callable[..., Any], called: str, named: Callable[[PyTree], Mapping[str, Any]]) -> None:
        self._step = step
        self._called = called
        self._named = named
        self._calls = 0

    def __call__(self, state: PyTree, data: PyTree) -> Any:
        """Runs the step on a batch.

        Raises:
            DisagreementError: Variables differ between workers after this call.
        """
        # Another operation than that of a compiled step: a worker that compiles its step has another program.
        with collective_log.at(f"call {self._called} uncompiled", user_lines()):
            results = self._step(state, data)
        self._calls += 1
        if self._calls & (self._calls - 1) == 0 or self._calls % _MOST_BETWEEN == 0:
            values = {
                f"{path} after step {self._calls}": value
                for path, value in self._named(results[1]).items()
                if isinstance(value, jax.Array) and value.is_fully_replicated
            }
            check_equal(
                self._called,
                values,
                rule="all workers must run the same step: the same operations, settings and constants",
                remedy="look for Python branches, settings of the optimizer, the loss and the layers, and constants "
                "that depend on the worker",
            )
        return results
