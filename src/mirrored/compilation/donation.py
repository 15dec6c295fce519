"""Steps that donate their variables' buffers: taken, dispatched and stored so that nothing can come in between."""

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

    Python delivers signals and injected exceptions after calls, so the step is one call: a chain of iterators of C that
    dispatches the program, notes its results, and stores those that are values of variables. Where Python has to run
    (on a cache miss) it runs in another thread (see `mirrored._jax.dispatch`).

    Args:
        dispatch: The program. It takes the donated arrays first, and returns the values of `assigned` first.
        count: How many arrays are donated: the values of so many of `assigned`.
        assigned: The variables that it assigns.
    """

    def __init__(self, dispatch: Dispatch, count: int, assigned: Sequence[Any]) -> None:
        self.dispatch = dispatch
        self.assigned = tuple(assigned)
        self.donated = self.assigned[:count]

    def __call__(self, operands: Sequence[Any]) -> DonatingStep:
        """Makes a step: the values of the variables are those after it, or, after an exception, those before it.

        Args:
            operands: What the program takes beside the donated arrays.

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
        """Makes the step; False if a signal handler has replaced a value since it was taken."""
        version = state.version
        args = [*map(_array_of, self.donated), *operands]
        self.dispatch.job = None
        results = map(iadd, (step.results,), starmap(self.dispatch.function, (args,)))
        run = storing(self.assigned, chain.from_iterable(results))
        shared = map(_is_shared, self.assigned)
        # From here to the call of `deque` Python runs no handler, unless a buffer has to be copied.
        state.step = step
        if state.reading or True in shared:
            self._copy_shared(args)
        if state.step is not step or state.version != version:
            state.step = None
            return False
        deque(run, 0)
        return True

    def _copy_shared(self, args: list[Any]) -> None:
        """Replaces the buffers that others hold, or are reading, by copies."""
        reading = {id(variable) for variable in list(state.reading.values())}
        for place, variable in enumerate(self.donated):
            if variable._shared or id(variable) in reading:
                args[place] = variable.taken()


class DonatingStep:
    """One call: what is needed to finish it.

    Attributes:
        results: All results of the program, once it has been dispatched.
        interruption: What interrupted the caller while the program was compiled, to be raised once the lock is free.
    """

    __slots__ = ("_steps", "_why", "interruption", "results")

    def __init__(self, steps: DonatingSteps) -> None:
        self._steps = steps
        self._why = "it was interrupted"
        self.results: list[Any] = []
        self.interruption: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Leaves the variables as they are before or after the step; they are lost if XLA has kept their buffers."""
        self._why = first_line(error)
        self.finish()
        if not self.results:
            self._steps.dispatch.forget()

    def finish(self) -> None:
        """Stores the results, if there are any."""
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
    """An error in one line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
