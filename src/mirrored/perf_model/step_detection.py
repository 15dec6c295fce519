"""Finds out which compiled function of a program is the training step, with its arguments and times."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError
from mirrored.perf_model.timing import lower_quartile
from mirrored.runtime.ambient import ambient

_WARM_UP = 2


class _SeenEnough(BaseException):
    """Exception that ends the observed program; not an `Exception`, so that the program's handlers do not catch it."""


@dataclasses.dataclass(frozen=True)
class DetectedStep:
    """The compiled function found to be a program's training step, with its arguments and measured times.

    Attributes:
        function: The compiled function with the most calls.
        args: Its positional arguments in the last call.
        kwargs: Its keyword arguments in the last call.
        strategies: The strategies in whose scope it was called.
        step_seconds: The median time until a call's result is ready.
        dispatch_seconds: Python's and JAX's part of a call, before the devices start, measured as in
            `mirrored.perf_model.timing.Timing`.
        between_seconds: The median time between the end of one step and the next call: input, and the loop's other
            work.
        first_step_seconds: From the start of the program to the end of its first step.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    strategies: tuple[Any, ...]
    step_seconds: float
    dispatch_seconds: float
    between_seconds: float
    first_step_seconds: float = 0.0


@dataclasses.dataclass
class _Record:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    strategies: tuple[Any, ...] = ()
    step: list[float] = dataclasses.field(default_factory=list)
    dispatch: list[float] = dataclasses.field(default_factory=list)
    between: list[float] = dataclasses.field(default_factory=list)
    ended: float | None = None
    first_ended: float = 0.0


class _CallWatch:
    def __init__(self, steps: int, seconds: float) -> None:
        self.records: dict[int, tuple[Function, _Record]] = {}
        self._steps = steps
        self._seconds = seconds
        self._call = Function.__call__
        self.began = time.perf_counter()

    def __call__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = ambient()
        if here.store is not None or here.runner is not None:
            return self._call(function, *args, **kwargs)
        record = self.records.setdefault(id(function), (function, _Record()))[1]
        start, busy = time.perf_counter(), time.thread_time()
        if record.ended is not None:
            record.between.append(start - record.ended)
        result = self._call(function, *args, **kwargs)
        record.dispatch.append(time.thread_time() - busy)
        jax.block_until_ready([leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)])
        record.ended = time.perf_counter()
        record.first_ended = record.first_ended or record.ended
        record.step.append(record.ended - start)
        record.args, record.kwargs, record.strategies = args, kwargs, here.strategies
        if len(record.step) >= self._steps + _WARM_UP and sum(record.step[_WARM_UP:]) >= self._seconds:
            raise _SeenEnough
        return result


def detect_step(
    program: Callable[[], Any], *, steps: int = 10, seconds: float = 0.0, called: str = "perf_model.detect_step"
) -> DetectedStep:
    """Runs a program until enough training steps were timed, and returns the detected training step.

    Context: cross-replica, with no other program in the process.

    Args:
        program: The training program. `detect_step` ends it by an exception in the last timed step.
        steps: The minimum number of steps to time, after two steps that compile and warm up.
        seconds: The minimum total time of the timed steps. It matters for short steps, whose times vary more.
        called: The caller's name, for messages.

    Returns:
        The compiled function with the most calls. If the program ends by itself, fewer steps are timed.

    Raises:
        ArgumentError: The program calls no compiled function at least three times.
    """
    watch = _CallWatch(steps, seconds)
    original = Function.__call__

    def call(self: Function, *args: Any, **kwargs: Any) -> Any:
        return watch(self, args, kwargs)

    # Patches `Function.__call__`, through which every call of a compiled function passes. A permanent hook in
    # `Function` would add a check to every step of every program.
    Function.__call__ = call  # type: ignore[method-assign]
    try:
        program()
    except _SeenEnough:
        pass
    finally:
        Function.__call__ = original  # type: ignore[method-assign]
    return _chosen(watch, called)


def _chosen(watch: _CallWatch, called: str) -> DetectedStep:
    found = max(watch.records.values(), key=lambda one: (len(one[1].step), sum(one[1].step)), default=None)
    if found is None or len(found[1].step) <= _WARM_UP:
        most = 0 if found is None else len(found[1].step)
        raise ArgumentError(
            called,
            found=f"the most-called compiled function was called {most} times"
            if most
            else "the program called no compiled function",
            rule=f"the training step must be a mirrored.function; at least {_WARM_UP + 1} calls are needed to time it",
            remedy="call strategy.run and the rest of the step in a function decorated with mirrored.function, or run "
            "more steps",
        )
    function, record = found
    return DetectedStep(
        function,
        record.args,
        record.kwargs,
        record.strategies,
        step_seconds=statistics.median(record.step[_WARM_UP:]),
        dispatch_seconds=lower_quartile(record.dispatch[_WARM_UP:]),
        between_seconds=statistics.median(record.between[_WARM_UP - 1 :]),
        first_step_seconds=record.first_ended - watch.began,
    )
