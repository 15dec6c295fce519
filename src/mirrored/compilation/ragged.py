"""Eager calls of functions with uneven per-replica batches: logs a warning, and checks the loss scale once."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import implementation_of, is_key, shape_of
from mirrored.compilation.frozen_state import PythonState, drawing_error, iterating_error
from mirrored.compilation.program import Program
from mirrored.compilation.rewinding import Names
from mirrored.compilation.signature import RaggedWhileTracing, flatten_arguments, has_ragged, is_ragged
from mirrored.compilation.static_keys import static_key
from mirrored.errors import ArgumentError, LossScaleWarning, TransformError
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.closure_key import code_of
from mirrored.runtime.entry_point import restoring
from mirrored.runtime.hooks import IteratedWhileTracing, RunInterceptor
from mirrored.values import structures
from mirrored.values.distributed_values import PerReplica
from mirrored.variables.access import is_read_error
from mirrored.variables.state_lock import exempt_from_lock, tracing

if TYPE_CHECKING:
    from mirrored.compilation.function import Function
    from mirrored.topology.device_assignment import DeviceAssignment

T = TypeVar("T")
_log = logging.getLogger("mirrored")


def log_ragged(function: object, name: str) -> None:
    """Logs the warning that a function runs eagerly, because it uses uneven per-replica values.

    Args:
        function: The Python function; its place in the program is named if it is a lambda.
        name: Its name.
    """
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        name = f"<lambda> ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    _log.warning(
        "%s got a per-replica value whose components are not arrays of one shape, so this step runs eagerly, one "
        "replica after another; pad batches to one size, or distribute the dataset with "
        "last_batch='pad', whose elements are (batch, mask), or with 'drop', to keep every step compiled",
        name,
    )


def uneven_error(name: str) -> ArgumentError:
    """Returns the error for lowering a function that needs uneven per-replica values, or for running several steps."""
    return ArgumentError(
        name,
        found="the per-replica batches of an argument differ in shape, or are not arrays",
        rule="only batches of equal shape have a program; a call with others runs eagerly, one step at a time",
        remedy="pass batches of equal shape, as a dataset with last_batch='pad' or 'drop' has them",
    )


def as_uneven_call(name: str, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Calls a function eagerly because its per-replica batches differ in shape.

    Raises:
        TransformError: The function reads a variable under a JAX transform, which it can do only in a program.
    """
    try:
        return call(*args, **kwargs)
    except TransformError as error:
        if not is_read_error(error):
            raise
        raise TransformError(
            error.called,
            found=f"{error.found}; this call of {name} is eager, because its per-replica batches differ in shape",
            rule=f"in eager code, {error.rule}; batches of equal shape have a program, which can read variables there",
            remedy="distribute the dataset with last_batch='pad' or 'drop' (or batch with drop_remainder=True) so that "
            "every call is compiled; or read the variable before the transform and pass its value to the transform",
        ) from error


def no_program_error(name: str, ended: BaseException) -> ArgumentError:
    """Returns the error for lowering a function that has no program, or for running several steps of it.

    Args:
        name: The function's name.
        ended: What has ended the trace: `IteratedWhileTracing`, `DrewWhileTracing` or `RaggedWhileTracing`.
    """
    if isinstance(ended, RaggedWhileTracing):
        return uneven_error(name)
    return iterating_error(name) if isinstance(ended, IteratedWhileTracing) else drawing_error(name)


def zeroed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns the arguments with uneven per-replica batches replaced by zeros of one common shape.

    The shape is that of the largest batch. Values with components that are not arrays are returned as they are.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> (batch,), _ = zeroed([PerReplica([np.ones(3), np.ones(2)], strategy.device_assignment)], {})
        >>> [component.shape for component in batch.values]
        [(3,), (3,)]
    """
    args, kwargs = structures.map_leaves(_evened, (tuple(args), dict(kwargs)))
    return args, kwargs


def _evened(leaf: Any) -> Any:
    if not is_ragged(leaf) or None in map(shape_of, leaf.values):
        return leaf
    arrays = (component for component in leaf.values if hasattr(component, "dtype"))
    fullest = max(arrays, key=lambda component: int(np.size(component)))
    return PerReplica([_zeros_like(fullest)] * len(leaf.values), leaf.device_assignment)


def _zeros_like(array: Any) -> Any:
    if not is_key(array):
        return np.zeros(np.shape(array), array.dtype)
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(array.shape, array.dtype))
    return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=implementation_of(array.dtype))


class RunScales(RunInterceptor):
    """Records the `strategy.run` calls with uneven batches in an eager call, to check their loss scale later.

    It is for a function that cannot be traced as a whole, because it can reach an iterator: a replica function usually
    reaches none, as the elements are its arguments.

    Args:
        trace: Traces a function for some arguments.
    """

    compiles = False

    def __init__(self, trace: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], object]) -> None:
        super().__init__(lambda function: function, static_key)
        self._trace = trace
        self._noted: dict[Any, tuple[Any, Callable[..., Any], Any, Any]] = {}

    def for_run(self, strategy: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
        """Records a `strategy.run` call with uneven batches, and returns `function` unchanged.

        Only the first such call of each function is recorded.
        """
        code = code_of(function)
        given = (tuple(args), dict(kwargs))
        if code not in self._noted and has_ragged(given):
            self._noted[code] = (strategy, function, *zeroed(*given))
        return function

    def check(self) -> None:
        """Warns of wrong loss scales in the recorded `strategy.run` calls.

        Warns:
            LossScaleWarning: As when the run is compiled.
        """
        for noted in self._noted.values():
            self._check_run(*noted)

    def _check_run(self, strategy: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        leaves = structures.flatten((args, kwargs))[0]
        name = str(getattr(function, "__name__", "function"))

        def run(*args: Any, **kwargs: Any) -> Any:
            return strategy.run(function, args, kwargs)

        with within(interceptor=None):
            check_scale(function, name, leaves, lambda: self._trace(run, args, kwargs))


def checked_call(
    function: Function,
    name: str,
    call: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device_assignment: DeviceAssignment | None,
) -> T:
    """Calls a compiled function eagerly, and then warns if its loss scale is wrong.

    The call is eager because its per-replica batches differ in shape. The check comes after the call, which has then
    created the variables and everything else that the function creates at its first call, and the trace of the check
    finds them.

    Args:
        function: The `Function`.
        name: Its name, for messages.
        call: Calls it eagerly.
        args: The positional arguments of the call.
        kwargs: The keyword arguments.
        device_assignment: That of the current strategy.

    Returns:
        The result of the call.

    Warns:
        LossScaleWarning: As when the function is compiled.
    """

    def trace(to_trace: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = flatten_arguments(args, kwargs, device_assignment)
        with tracing, within(creators=(*ambient().creators, _refuse_created)):
            exempt_from_lock(functools.partial(Program, to_trace, arguments, donate=False, owner=function))

    own = zeroed(args, kwargs)
    leaves = structures.flatten(own)[0]
    if not PythonState(function.python_function, leaves, name).can_rewind:
        runs = RunScales(trace)
        with within(interceptor=runs):
            result = call(*args, **kwargs)
        runs.check()
        return result
    result = call(*args, **kwargs)
    check_scale(function.python_function, name, leaves, lambda: trace(function.traced_function, *own))
    return result


class _CreatedWhileChecking(BaseException):
    """Exception that aborts a trace made only for a check, because the user's function creates a variable.

    It is not an `Exception`: user code that catches `Exception` must not handle it.
    """


def _refuse_created(next_creator: Callable[..., object], **kwargs: object) -> NoReturn:
    """Variable creator that raises an exception instead of creating a variable.

    The exception aborts a trace that is made only for a check, because a variable created in it could not be removed.
    """
    raise _CreatedWhileChecking


def check_scale(function: Callable[..., Any], name: str, leaves: Sequence[Any], trace: Callable[[], object]) -> None:
    """Traces a function only to warn of a wrong loss scale; then undoes the function's changes to Python objects.

    These are containers, random generators, attributes of the user's objects, closure variables and globals.

    Eager steps compute no jaxpr in which the check could find the scale. If the trace fails, or would create a
    variable, nothing is checked any more. If the function can reach iterators or queues, it is not traced: the trace
    would take elements from them, which cannot be put back, so a step would train on other examples than without the
    check.

    Args:
        function: The Python function. It has been called before.
        name: Its name, for messages.
        leaves: The leaves of its arguments.
        trace: Traces it.

    Warns:
        LossScaleWarning: As when the function is compiled.
    """
    python_state = PythonState(function, leaves, name)
    if not python_state.can_rewind:
        return
    names = Names(function, leaves)
    try:
        restoring(trace)()  # what a signal handler raises in here may be ignored below
    except LossScaleWarning:
        raise  # warnings are errors
    except (Exception, _CreatedWhileChecking, RaggedWhileTracing):  # the eager step has worked
        pass
    finally:
        python_state.rewind()
        names.rewind()
