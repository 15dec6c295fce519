"""Watching a training program: which compiled function is its step, with which arguments, and how long it takes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from mirrored.errors import ArgumentError
from mirrored.function.function import Function
from mirrored.replicas import structures
from mirrored.replicas.ambient import ambient
from mirrored.replicas.values import PerReplica

_WARM_UP = 2


class _SeenEnough(BaseException):
    """Ends the program that is watched. No `Exception`, so that the program does not take it for one of its own."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """A program's training step.

    Attributes:
        function: The compiled function that was called most.
        args: Its arguments, at the last call.
        kwargs: Likewise.
        strategies: The strategies in whose scope it was called.
        step_seconds: Until a call's result was there.
        dispatch_seconds: Python's and JAX's own part of a call, before the devices have anything to do: until a call
            returned, but no more than a call with as many arrays takes that does nothing (on CPUs a call may compute
            before it returns).
        between_seconds: Between the end of one step and the next call: input, and whatever the loop does.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    strategies: tuple[Any, ...]
    step_seconds: float
    dispatch_seconds: float
    between_seconds: float


@dataclasses.dataclass
class _Record:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    strategies: tuple[Any, ...] = ()
    step: list[float] = dataclasses.field(default_factory=list)
    dispatch: list[float] = dataclasses.field(default_factory=list)
    between: list[float] = dataclasses.field(default_factory=list)
    ended: float | None = None


class _Watch:
    def __init__(self, steps: int) -> None:
        self.records: dict[int, tuple[Function, _Record]] = {}
        self._steps = steps
        self._call = Function.__call__

    def __call__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = ambient()
        if here.frame is not None or here.runner is not None:
            return self._call(function, *args, **kwargs)
        record = self.records.setdefault(id(function), (function, _Record()))[1]
        start = time.perf_counter()
        if record.ended is not None:
            record.between.append(start - record.ended)
        result = self._call(function, *args, **kwargs)
        record.dispatch.append(time.perf_counter() - start)
        jax.block_until_ready([leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)])
        record.ended = time.perf_counter()
        record.step.append(record.ended - start)
        record.args, record.kwargs, record.strategies = args, kwargs, here.strategies
        if len(record.step) >= self._steps + _WARM_UP:
            raise _SeenEnough
        return result


def observe(program: Callable[[], Any], *, steps: int = 10, called: str = "mirrored.planning.observe") -> Observation:
    """Runs `program` until one of its compiled functions has been called often enough.

    Context: cross-replica, with no other program in the process.

    Args:
        program: Trains; it is ended from inside after the last step that is needed.
        steps: Steps to time, after two that compile and warm up.
        called: For messages.

    Returns:
        The function that was called most often. If the program ends earlier by itself, of fewer steps.

    Raises:
        ArgumentError: It calls no compiled function three times.
    """
    watch = _Watch(steps)
    original = Function.__call__

    def call(self: Function, *args: Any, **kwargs: Any) -> Any:
        return watch(self, args, kwargs)

    # Every call of a compiled function comes through here. A hook in `Function` itself would cost every step of every
    # program a look.
    Function.__call__ = call  # type: ignore[method-assign]
    try:
        program()
    except _SeenEnough:
        pass
    finally:
        Function.__call__ = original  # type: ignore[method-assign]
    return _chosen(watch, called)


def _chosen(watch: _Watch, called: str) -> Observation:
    found = max(watch.records.values(), key=lambda one: (len(one[1].step), sum(one[1].step)), default=None)
    if found is None or len(found[1].step) <= _WARM_UP:
        most = 0 if found is None else len(found[1].step)
        raise ArgumentError(
            called,
            found=f"a program that calls no compiled function more than {most} times"
            if most
            else "a program that calls no compiled function",
            rule=f"its training step is a mirrored.function that is called at least {_WARM_UP + 1} times",
            remedy="put strategy.run and what belongs to the step into a function decorated with mirrored.function",
        )
    function, record = found
    return Observation(
        function,
        record.args,
        record.kwargs,
        record.strategies,
        step_seconds=statistics.median(record.step[_WARM_UP:]),
        dispatch_seconds=min(statistics.median(record.dispatch[_WARM_UP:]), _idle_call(record)),
        between_seconds=statistics.median(record.between[_WARM_UP - 1 :]),
    )


def _idle_call(record: _Record) -> float:
    """Seconds until a compiled call returns that takes the step's arguments and does nothing with them."""
    leaves = structures.flatten((record.args, record.kwargs))[0]
    arrays = [leaf.stacked(leaf.layout) if isinstance(leaf, PerReplica) and leaf.layout else leaf for leaf in leaves]
    arrays = [leaf for leaf in arrays if isinstance(leaf, jax.Array)]
    idle = jax.jit(lambda *given: [one.ravel()[:1] for one in given])
    jax.block_until_ready(idle(*arrays))
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        result = idle(*arrays)
        seconds.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    return statistics.median(seconds)
