"""Checks the loss scale of functions that run eagerly because per-replica batches are uneven, by one extra trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mirrored.compilation.frozen_state import PythonState
from mirrored.compilation.program import Program
from mirrored.compilation.rewinding import Names
from mirrored.compilation.signature import flatten_arguments
from mirrored.compilation.static_keys import static_key
from mirrored.errors import LossScaleWarning
from mirrored.runtime.ambient import within
from mirrored.runtime.closure_key import code_of
from mirrored.runtime.hooks import Driver
from mirrored.values import structures
from mirrored.values.distributed_values import PerReplica
from mirrored.variables.state_lock import or_undone, tracing, turn, without_turns

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment

T = TypeVar("T")


def evened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Replaces uneven per-replica batches in arguments by zeros, all in the shape of the largest batch.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> (batch,), _ = evened([PerReplica([np.ones(3), np.ones(2)], strategy.device_assignment)], {})
        >>> [component.shape for component in batch.values]
        [(3,), (3,)]
    """
    args, kwargs = structures.map_leaves(_evened, (tuple(args), dict(kwargs)))
    return args, kwargs


def _is_ragged(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica) and not leaf.is_stacked and leaf.component_shape is None


def _evened(leaf: Any) -> Any:
    if not _is_ragged(leaf):
        return leaf
    fullest = max(leaf.values, key=lambda component: int(np.size(component)))
    return PerReplica([np.zeros(np.shape(fullest), fullest.dtype)] * len(leaf.values), leaf.device_assignment)


class RunScales(Driver):
    """A `Driver` that checks the loss scale of each `Strategy.run` in a function, but does not compile the calls.

    It is for a function that cannot be traced as a whole, because it can reach an iterator: a replica function usually
    reaches none, as the elements are its arguments.

    Args:
        trace: Traces a function for some arguments.
    """

    compiles = False

    def __init__(self, trace: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], object]) -> None:
        super().__init__(lambda function: function, static_key)
        self._trace = trace
        self._checked: set[Any] = set()

    def of_run(self, strategy: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
        """Checks the loss scale of a `strategy.run` with uneven batches, once per function; returns `function`.

        Warns:
            LossScaleWarning: As when the run is compiled.
        """
        code = code_of(function)
        given = (tuple(args), dict(kwargs))
        if code not in self._checked and any(map(_is_ragged, structures.flatten(given)[0])):
            self._checked.add(code)
            own_args, own_kwargs = evened(*given)
            leaves = structures.flatten((own_args, own_kwargs))[0]
            name = str(getattr(function, "__name__", "function"))

            def run(*args: Any, **kwargs: Any) -> Any:
                return strategy.run(function, args, kwargs)

            with within(driver=None):
                check_scale(function, name, leaves, lambda: self._trace(run, own_args, own_kwargs))
        return function


def check_eager_call(
    function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], device_assignment: DeviceAssignment | None
) -> RunScales | None:
    """Checks the loss scale of a compiled function that is about to run eagerly because of uneven batches.

    Args:
        function: The `Function`.
        name: Its name, for messages.
        args: The positional arguments of the call.
        kwargs: The keyword arguments.
        device_assignment: That of the current strategy.

    Returns:
        None, or the driver with which the call must run, so that its runs are checked one by one.
    """

    def trace(to_trace: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = flatten_arguments(args, kwargs, device_assignment)
        with tracing:
            without_turns(functools.partial(Program, to_trace, arguments, donate=False, owner=function))

    own = evened(args, kwargs)
    leaves = structures.flatten(own)[0]
    checked = check_scale(function.python_function, name, leaves, lambda: trace(function.traced_function, *own))
    return None if checked else RunScales(trace)


def check_scale(function: Callable[..., Any], name: str, leaves: Sequence[Any], trace: Callable[[], object]) -> bool:
    """Traces a function only to warn of a wrong loss scale; then undoes the function's changes to Python objects.

    These are containers, random generators, attributes of the user's objects, closure variables and globals.

    Eager steps compute no jaxpr in which the check could find the scale. If the trace fails, nothing is checked. If the
    function can reach iterators, it is not traced: the trace would take elements from them, which cannot be put back,
    so a step would train on other examples than without the check.

    Args:
        function: The Python function.
        name: Its name, for messages.
        leaves: The leaves of its arguments.
        trace: Traces it.

    Returns:
        Whether the function was traced.

    Warns:
        LossScaleWarning: As when the function is compiled.
    """
    python_state = PythonState(function, leaves, name)
    if not python_state.can_rewind:
        return False
    names = Names(function, leaves)
    try:
        trace()
    except LossScaleWarning:
        raise  # warnings are errors
    except Exception:  # the eager step works, or raises its own error
        pass
    finally:
        python_state.rewind()
        names.rewind()
    return True


def undone_after_errors(call: Callable[[], T]) -> T:
    """Calls a function eagerly; if it raises an exception, all variables keep their values, as in compiled calls.

    They include those assigned outside of `Strategy.run`.
    """
    with turn():
        return or_undone(call)
