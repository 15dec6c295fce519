"""Runs compiled steps with donated variable buffers, limits the steps in flight, and compares workers' arguments."""

from __future__ import annotations

import collections
import math
from collections import deque
from collections.abc import Sequence
from itertools import chain, starmap
from operator import iadd, itemgetter
from typing import TYPE_CHECKING, Any, Final

import jax

from mirrored._jax import distributed
from mirrored._jax.interrupts import Dispatch, consume
from mirrored._jax.source_lines import user_lines
from mirrored.collectives.host_allgather import check_equal, host_allgather
from mirrored.errors import ContextError, DeviceError, DisagreementError
from mirrored.variables.former import has_failed, on_restored, restore_failed
from mirrored.variables.state_lock import attributes_of, lock, state, storing
from mirrored.variables.storage import distinct_names, placed
from mirrored.watchdog.collective_log import collective_log

if TYPE_CHECKING:
    from mirrored._jax.jaxprs import Jaxpr
    from mirrored.topology.device_assignment import DeviceAssignment


_MOST_KEPT: Final = 2**20
"""The size in bytes from which a program returns a token, so that steps in flight keep no result of this size."""


def smallest_computed(jaxpr: Jaxpr, results: Sequence[jax.ShapeDtypeStruct]) -> int | None:
    """Returns the index of the smallest result that a step computes; None if none is smaller than 1 MiB.

    The array is ready when the step has ended. A step in flight keeps it, also after the user has dropped it. An
    argument that the step returns is not computed: JAX returns it as it is, without waiting for the step. Without such
    a result, the step needs an additional output (a token).

    Args:
        jaxpr: The program. `results` are the last of its outputs.
        results: The arrays that the caller receives.
    """
    given = {id(one) for one in (*jaxpr.constvars, *jaxpr.invars)}
    outputs = jaxpr.outvars[len(jaxpr.outvars) - len(results) :]
    sizes = [
        _MOST_KEPT if id(output) in given else math.prod(one.shape) * one.dtype.itemsize
        for output, one in zip(outputs, results, strict=True)
    ]
    smallest = min(sizes, default=_MOST_KEPT)
    return None if smallest >= _MOST_KEPT else sizes.index(smallest)


# Steps that donate their variables' buffers, dispatched and stored in one uninterruptible call.

_array_in = itemgetter("_array")
_is_shared_in = itemgetter("_shared")


class DonatingSteps:
    """A compiled program that donates variable buffers to XLA, and stores the new values atomically.

    Each call is one step. The caller holds the state lock.

    A buffer is donated only if its variable alone holds it. If other code may hold it (`VariableStorage.is_shared`), or
    a thread is copying it to the host (`state.reading`), the step puts a copy into the variable and donates that.

    Dispatching deletes the donated buffers, so an exception between the dispatch and the assignment of the results
    would lose the variables' values. The step is therefore one C call, which no signal handler interrupts (the reason
    is in `mirrored._jax.interrupts`): it consumes a chain of C iterators that dispatches the program, records its
    results, and stores the new values of variables.
    `mirrored.variables.state_lock` explains how other threads are kept from reading deleted buffers.

    Args:
        dispatch: The program. It takes the donated arrays first, and returns the values of `assigned` first.
        count: The number of donated arrays: those of the first `count` variables of `assigned`.
        assigned: The variables that the program assigns.
    """

    def __init__(self, dispatch: Dispatch, count: int, assigned: Sequence[Any]) -> None:
        self.dispatch = dispatch
        self.assigned = tuple(assigned)
        self.donated = self.assigned[:count]
        self._attributes = attributes_of(assigned)
        self._donated_attributes = self._attributes[:count]

    def __call__(self, operands: Sequence[Any]) -> DonatingStep:
        """Executes a step. After an exception, all variables have their old or new values, or are marked as lost.

        If XLA has deleted the donated buffers and there are no results, the donated variables have no value and are
        marked as lost (`lose`). The other variables keep their old values.

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
        """Executes one step, unless a signal handler has just assigned a variable; returns whether the step ran."""
        version = state.version
        args = [*map(_array_in, self._donated_attributes), *operands]
        self.dispatch.job = None
        results = map(iadd, (step.results,), starmap(self.dispatch.function, (args,)))
        run = storing(self._attributes, chain.from_iterable(results))
        shared = map(_is_shared_in, self._attributes)
        # From here until the call of `deque`, Python runs no signal handler unless a buffer has to be copied. A handler
        # that accesses a variable during the copy finishes this step, which clears `state.step`; one that assigns a
        # variable changes `state.version`. The step then begins again with the new values.
        state.step = step
        if state.reading or True in shared:
            self._copy_shared(args)
        if state.step is not step or state.version != version:
            state.step = None
            return False
        deque(run, 0)  # not `consume`: Python runs signal handlers where it enters a function
        return True

    def _copy_shared(self, args: list[Any]) -> None:
        """Copies buffers that user code holds or another thread reads, because donation would delete them."""
        reading = {id(variable) for variable in list(state.reading.values())}
        for place, variable in enumerate(self.donated):
            if variable._shared or id(variable) in reading:
                args[place] = variable.taken()


class DonatingStep:
    """A call of a program that donates variable buffers; stores the results even if an exception interrupts the call.

    While it is in progress, `state.step` refers to it. If a second exception interrupts `fail`, the next access to a
    variable calls `finish`.

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
        """Ends a step that raised an exception: stores the results if the program ran, else keeps the old values.

        A variable whose old buffer XLA has deleted is marked as lost.
        """
        self._why = first_line(error)
        self.finish()
        if not self.results:
            self._steps.dispatch.forget()

    def finish(self) -> None:
        """Stores the step's results in the variables; without results, marks variables with deleted buffers as lost."""
        steps, job = self._steps, self._steps.dispatch.job
        if job is not None and not self.results:
            job.wait_or_cancel()
            if job.result is not None:  # the outputs, and JAX's data for the fast path
                self.results += job.result[0]
        if self.results:
            consume(storing(steps._attributes, self.results))
        else:
            for variable in steps.donated:
                # A lost variable keeps the reason of the step that has lost it: later steps fail for the same reason.
                if variable._array.is_deleted() and not variable.is_lost:
                    variable.lose(self._why)
        state.version += 1
        state.step = None


def first_line(error: BaseException) -> str:
    """Returns a one-line description of an error: its type and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


# Bounds the number of steps in flight.
#
# JAX dispatches asynchronously. Simulated devices share one thread pool, and with dozens of steps in flight their
# collectives can deadlock (64 in flight: 0 of 5 runs finished; 1 to 16: 29 of 29). Each step therefore waits for the
# step `LIMIT` steps before it.

LIMIT: Final = 8
"""The maximum number of steps in flight."""

_pending: collections.deque[Any] = collections.deque()
distributed.on_leave(_pending.clear)


def launched(token: jax.Array) -> None:
    """Registers a dispatched step by one of its output arrays, and waits if too many steps are in flight.

    Context: any thread. The steps of all threads are counted together.
    """
    _pending.append(token)
    while len(_pending) > LIMIT:
        _wait_for_oldest()


def drain() -> None:
    """Waits until all dispatched steps have finished on the devices."""
    while _pending:
        _wait_for_oldest()


def forget() -> None:
    """Stops tracking the steps in flight.

    Called after a step has failed. Waiting for the later steps would raise the same error again.
    """
    _pending.clear()


on_restored(forget)


def _wait_for_oldest() -> None:
    try:
        oldest = _pending.popleft()
    except IndexError:  # another thread has removed it meanwhile
        return
    try:
        oldest.block_until_ready()
    except RuntimeError:
        # The owner of the output may donate its buffer at any time, so it is checked after the error, not before.
        if not oldest.is_deleted():
            raise


def lose_failed(variables: Sequence[Any], error: BaseException, *, waits: bool) -> None:
    """Marks variables as lost if a failed step did not compute their new values; reading them then raises an error.

    Variables of steps that have kept the old values (`variables.former`) get these back. If another program raised the
    error, the variables have their new values, and are not lost.

    Args:
        variables: The operands of the program: variables whose buffers it has donated, and those that it only reads.
        error: What was raised.
        waits: Whether to wait for values that are not computed yet. Otherwise they count as failed: a collective with
            a lost worker may never end.
    """
    restore_failed()
    for variable in variables:
        value = variable._array
        if has_failed(value, waits):
            with lock:
                if variable._array is value:
                    variable.lose(first_line(error))


# Compares the arguments of a compiled program between workers, and places them on the devices of all workers.

_MOST_BETWEEN: Final = 1024


class WorkerArguments:
    """Checks, at calls of a compiled program, that all workers of a job pass consistent arguments.

    At the first call, all workers must call the same program with arguments of the same shapes. Arguments, captured
    arrays and plain variables that have one value for all replicas must be equal. Arguments and plain variables are
    compared again at calls 2, 4, 8, ..., 1024, and at every 1024th call only: a comparison takes a millisecond, and
    more for large plain variables, which it copies to the host.

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

    def record_dispatch(self, token: object) -> None:
        """Records in the watchdog's collective log that the program has been dispatched.

        The program counts as running until the array `token` is ready.
        """
        collective_log.depart(token)

    def arguments(self, arrays: Sequence[Any], device_assignment: DeviceAssignment, program: str) -> list[Any]:
        """Places arguments on all workers' devices; in the first and some later calls, compares them between workers.

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
        """Records a call in the collective log; in the first and some later calls, compares arguments between workers.

        The docstring of the class says at which calls.

        Returns:
            The arguments that are only in this worker's memory, by position.
        """
        own = {place: array for place, array in enumerate(arrays) if _is_fully_addressable(array)}
        number = self._calls + 1
        if number == 1:
            self._compare_all(arrays, own, program)
            self._captured = ()
        elif number & (number - 1) == 0 or number % _MOST_BETWEEN == 0:
            self._compare(own)
            self._compare_captured()
        # After a disagreement, which all workers raise, the next call compares again.
        self._calls = number
        collective_log.arrive(self._place, user_lines())
        return own

    def _compare_all(self, arrays: Sequence[Any], own: dict[int, Any], program: str) -> None:
        check_same_program(self._name, arrays, program)
        self._compare(own)
        self._compare_captured()

    def _compare(self, own: dict[int, Any]) -> None:
        check_equal(
            self._name,
            {f"array {place} of its arguments": array for place, array in own.items()},
            rule="an argument that is not a per-replica value must be equal on all workers",
            remedy="pass values that differ between workers by strategy.distribute_values_from_function or a "
            "distributed dataset",
        )

    def _compare_captured(self) -> None:
        values = {f"captured array {place}": array for place, array in enumerate(self._captured)}
        plain = [variable for variable in self._variables if variable.device_assignment is None]
        names = distinct_names(plain)
        for variable in plain:
            if _is_fully_addressable(value := variable.borrowed()):
                values[f"variable {names[id(variable)]!r}"] = value
        check_equal(
            self._name,
            values,
            rule="a captured array, or a variable created outside a scope, must be equal on all workers",
            remedy="create the variable in strategy.scope(), and compute the array from the same data on all workers; "
            "pass values that differ between workers by strategy.distribute_values_from_function",
        )


def check_same_program(called: str, arrays: Sequence[Any], program: str) -> None:
    """Raises an error on all workers if they are about to run different programs or pass arguments of different shapes.

    Args:
        called: The name of the function, for messages.
        arrays: The arguments' arrays.
        program: A digest of the program.

    Raises:
        DisagreementError: Programs or shapes differ, or another worker calls something else.
    """
    shapes = [f"{array.dtype}{list(array.shape)}" for array in arrays]
    gathered = host_allgather(called, f"call {called} for the first time", [shapes, program])
    everyone = [theirs for theirs, _ in gathered]
    for worker, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise DisagreementError(
                called,
                found=f"the arguments are {', '.join(everyone[0])} on worker 0 and {', '.join(theirs)} on worker "
                f"{worker}",
                rule="all workers must run one program, with arguments of the same shapes",
                remedy="distribute the dataset with last_batch='pad' (or 'drop'), and take the same number of "
                "batches on all workers",
            )
    programs = [theirs for _, theirs in gathered]
    for worker, other in enumerate(programs):
        if other != programs[0]:
            raise DisagreementError(
                called,
                found=f"the program on worker {worker} ({other}) is not the program on worker 0 ({programs[0]})",
                rule="all workers must run the same program: the same operations, shapes and constants",
                remedy=f"check the version of the code on worker {worker}, and look for Python branches and "
                "constants that depend on the worker",
            )


def _is_fully_addressable(array: jax.Array) -> bool:
    """Returns whether this worker can address all of `array`; True for NumPy arrays."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable


_OF_EXPLICIT_AXES: Final = ("Resource axis", "sdy.manual_computation", "Explicit: (")


def is_of_devices(error: BaseException) -> bool:
    """Returns whether JAX has refused operands that are committed to different devices."""
    return isinstance(error, ValueError) and "incompatible devices" in str(error)


def explained_error(called: str, error: BaseException) -> DeviceError | ContextError | None:
    """Converts JAX's errors about devices, mesh axes and leaked values to ours; returns None for any other error."""
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return ContextError(
            called,
            found="the function uses a value that was stored while another function, branch or loop body was traced",
            rule="traced code computes its values when the program runs: they leave it as its results only",
            remedy="return the value: a loop or branch itself may assign it, as in `self.v = self.method(x)`, where "
            "AutoGraph converts it; or store it in a Variable",
        )
    if not isinstance(error, ValueError):
        return None
    if any(words in str(error) for words in _OF_EXPLICIT_AXES):
        return DeviceError(
            called,
            found=f"an array of a mesh with explicit axes: {first_line(error)}",
            rule="a run uses its own mesh, so its inputs cannot have explicit sharding (a sharding in their type)",
            remedy="copy the array first: jax.device_put(x, jax.devices()[0]), or create its mesh with Auto axes",
        )
    if not is_of_devices(error):
        return None
    return DeviceError(
        called,
        found=f"an argument is on other devices than the variables: {first_line(error)}",
        rule="arguments of a compiled function must be on the devices of its strategy, or not committed to a device",
        remedy="pass a NumPy array, or the batches of a distributed dataset; or move it: jax.device_put(x, device)",
    )
