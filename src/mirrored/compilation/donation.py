"""Steps that donate their variables' buffers, dispatched and stored in one uninterruptible call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, starmap
from operator import attrgetter, iadd
from typing import Any

from mirrored._jax.dispatch import Dispatch, consume
from mirrored.variables.state_lock import state, storing

_array_of = attrgetter("_array")
_is_shared = attrgetter("_shared")


class DonatingSteps:
    """Calls a donating program, one step per call, with the state lock held.

    Dispatching deletes the donated buffers, so an exception between the dispatch and the assignment of the results
    would lose the variables' values. Python delivers signals and injected exceptions only between calls. The step is
    therefore one call: a chain of C iterators that dispatches the program, records its results, and stores the new
    values of variables. Python code that has to run (on a cache miss) runs in another thread (see
    `mirrored._jax.dispatch`).

    Args:
        dispatch: The program. It takes the donated arrays first, and returns the values of `assigned` first.
        count: The number of donated arrays: those of the first `count` variables of `assigned`.
        assigned: The variables that the program assigns.
    """

    def __init__(self, dispatch: Dispatch, count: int, assigned: Sequence[Any]) -> None:
        self.dispatch = dispatch
        self.assigned = tuple(assigned)
        self.donated = self.assigned[:count]

    def __call__(self, operands: Sequence[Any]) -> DonatingStep:
        """Executes a step. After an exception, the variables have consistent values: those from before or after it.

        Args:
            operands: The operands of the program that are not donated.

        Returns:
            The step, with its results.
        """
        step = DonatingStep(self)
        try:
            while not self._attempt(step, operands):
                pass
        except BaseException as error:
            step.fail(error)
            raise
        state.version += 1
        state.step = None
        job = self.dispatch.job
        if job is not None:
            self.dispatch.job, step.interruption = None, job.interruption
        return step

    def _attempt(self, step: DonatingStep, operands: Sequence[Any]) -> bool:
        """Executes the step, or returns False if a signal handler has replaced a variable's value meanwhile."""
        version = state.version
        args = [*map(_array_of, self.donated), *operands]
        self.dispatch.job = None
        results = map(iadd, (step.results,), starmap(self.dispatch.function, (args,)))
        run = storing(self.assigned, chain.from_iterable(results))
        shared = map(_is_shared, self.assigned)
        # From here until the call of `deque`, Python runs no signal handler unless a buffer has to be copied. The
        # version check detects a handler that assigned a variable during the copy.
        state.step = step
        if state.reading or True in shared:
            self._copy_shared(args)
        if state.step is not step or state.version != version:
            state.step = None
            return False
        deque(run, 0)
        return True

    def _copy_shared(self, args: list[Any]) -> None:
        """Replaces buffers that user code holds or another thread reads by copies, since donation deletes buffers."""
        reading = {id(variable) for variable in list(state.reading.values())}
        for place, variable in enumerate(self.donated):
            if variable._shared or id(variable) in reading:
                args[place] = variable.taken()


class DonatingStep:
    """One call in progress, with the state that is needed to finish it.

    Attributes:
        results: All results of the program, once it has been dispatched.
        interruption: The exception that interrupted the caller during compilation. It is raised after the lock is
            released.
    """

    __slots__ = ("_steps", "_why", "interruption", "results")

    def __init__(self, steps: DonatingSteps) -> None:
        self._steps = steps
        self._why = "it was interrupted"
        self.results: list[Any] = []
        self.interruption: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Finishes a failed step: variables keep their values, or are lost if XLA has deleted their buffers."""
        self._why = first_line(error)
        self.finish()
        if not self.results:
            self._steps.dispatch.forget()

    def finish(self) -> None:
        """Stores the results if there are any; otherwise marks variables whose buffers were deleted as lost."""
        steps, job = self._steps, self._steps.dispatch.job
        if job is not None and not self.results:
            job.settle()
            if job.result is not None:
                self.results += job.result[0]
        if self.results:
            consume(storing(steps.assigned, self.results))
        else:
            for variable in steps.donated:
                if variable._array.is_deleted():
                    variable.lose(self._why)
        state.version += 1
        state.step = None


def first_line(error: BaseException) -> str:
    """Returns a one-line description of an error: its type and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
