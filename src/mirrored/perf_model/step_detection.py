"""Finds out which compiled function of a program is the training step, with its arguments and times."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax

from mirrored._typing import Leaf
from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError
from mirrored.perf_model.timing import lower_quartile
from mirrored.runtime.ambient import ambient
from mirrored.values import structures
from mirrored.values.distributed_values import Mirrored, PerReplica

_WARM_UP = 2
# A program that gives its step more different shapes than this ends before its most common signature is timed fully.
_MOST_SIGNATURES = 16


class _SeenEnough(BaseException):
    """Exception that ends the observed program; a `BaseException`, which ``except Exception`` does not catch."""


@dataclasses.dataclass(frozen=True)
class DetectedStep:
    """The compiled function found to be a program's training step, with its arguments and measured times.

    The arguments and times are those of the calls with the most common signature: with the same structure, and arrays
    of the same shapes and dtypes. The last batch of an epoch may be smaller. If the function has `steps_per_call`, the
    arguments are those of the first step of a call, and the times are those of a call divided by its steps. The
    arguments match the function's `input_signature`, if it has one.

    Attributes:
        function: The compiled function with the most calls.
        args: Its positional arguments in the last call with this signature.
        kwargs: Its keyword arguments in this call.
        strategies: The strategies in whose scope it was called.
        step_seconds: The median time until a call's result is ready.
        dispatch_seconds: Python's and JAX's part of a call, before the devices start, measured as in
            `mirrored.perf_model.timing.Timing`.
        between_seconds: The median time between the end of one step and the next call: input, and the loop's other
            work.
        first_step_seconds: From the start of the program to the end of its first step.
        differing: The places of the leaves of `args` and `kwargs` for which the calls got different objects.
        returned: The places of the leaves that were results of the previous call, as the parameters in a functional
            state are.
        steps_per_call: The number of steps that one call runs.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    strategies: tuple[Any, ...]
    step_seconds: float
    dispatch_seconds: float
    between_seconds: float
    first_step_seconds: float = 0.0
    differing: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    steps_per_call: int = 1


@dataclasses.dataclass
class _Calls:
    """The measured calls of a function with one signature.

    `differing` has the indices of arguments that were not the same objects as in the previous call, and `returned` of
    those that the previous call had returned.
    """

    step: list[float] = dataclasses.field(default_factory=list)
    dispatch: list[float] = dataclasses.field(default_factory=list)
    between: list[float] = dataclasses.field(default_factory=list)
    differing: set[int] = dataclasses.field(default_factory=set)
    returned: set[int] = dataclasses.field(default_factory=set)

    def is_seen(self, steps: int, seconds: float) -> bool:
        return len(self.step) >= steps + _WARM_UP and sum(self.step[_WARM_UP:]) >= seconds


@dataclasses.dataclass
class _Record:
    """All calls of a function, by signature, and the arguments of the newest call with the most common signature."""

    calls: dict[Hashable, _Calls] = dataclasses.field(default_factory=dict)
    most_common: _Calls = dataclasses.field(default_factory=_Calls)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    strategies: tuple[Any, ...] = ()
    leaves: list[Any] = dataclasses.field(default_factory=list)  # of the newest call, of any signature
    results: list[Any] = dataclasses.field(default_factory=list)
    ended: float | None = None
    first_ended: float = 0.0

    @property
    def totals(self) -> tuple[int, float]:
        """The number of calls, and their total time in seconds; the step is the function with the largest totals."""
        times = [one.step for one in self.calls.values()]
        return sum(map(len, times)), sum(map(sum, times))

    def calls_like(self, leaves: list[Any], treedef: Hashable) -> _Calls:
        """Returns the `_Calls` with the signature of a new call, after recording the new call's arguments there."""
        calls = self.calls.setdefault((treedef, *map(_kind, leaves)), _Calls())
        if len(leaves) == len(self.leaves):
            calls.differing |= {place for place, leaf in enumerate(leaves) if leaf is not self.leaves[place]}
        results = {id(leaf) for leaf in self.results}
        calls.returned |= {place for place, leaf in enumerate(leaves) if id(leaf) in results}
        self.leaves = leaves
        return calls


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
        called = time.perf_counter()
        seen_args, seen_kwargs = _of_one_step(function, args, kwargs)
        record = self.records.setdefault(id(function), (function, _Record()))[1]
        calls = record.calls_like(*structures.flatten((seen_args, seen_kwargs)))
        start, busy = time.perf_counter(), time.thread_time()
        result = self._call(function, *args, **kwargs)
        dispatch = time.thread_time() - busy
        results = jax.tree.leaves(result)
        jax.block_until_ready([leaf for leaf in results if isinstance(leaf, jax.Array)])
        ended = time.perf_counter()
        if function._interceptor is not None:
            # It takes elements of a dataset, so it ran as Python, and the compiled runs in it have their own records.
            self.records.pop(id(function), None)
            return result
        calls.between.append(0.0 if record.ended is None else called - record.ended)
        calls.dispatch.append(dispatch)
        calls.step.append(ended - start)
        if len(calls.step) >= len(record.most_common.step):
            record.most_common, record.strategies = calls, here.strategies
            record.args, record.kwargs = seen_args, seen_kwargs
        record.results, record.ended = results, ended
        record.first_ended = record.first_ended or ended
        if record.most_common.is_seen(self._steps, self._seconds) or self._has_many_signatures(record):
            raise _SeenEnough
        return result

    def _has_many_signatures(self, record: _Record) -> bool:
        """Returns whether a function has so many call signatures that timing the most common one takes too long."""
        count, seconds = record.totals
        return count >= _MOST_SIGNATURES * (self._steps + _WARM_UP) and seconds >= _MOST_SIGNATURES * self._seconds


def _of_one_step(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with which a call traces the Python function: those of its first step, converted."""
    if function.steps_per_call is not None:
        return function._steps(*args, **kwargs)[0], {}
    return function._fitted(args, kwargs)


def _kind(leaf: Leaf) -> Hashable:
    """Returns one argument's part of a call signature, such as its shape and dtype."""
    if isinstance(leaf, Mirrored):
        return _kind(leaf.value)
    if isinstance(leaf, PerReplica):
        return leaf.component_shape, _kind(leaf.first())
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return leaf.shape, leaf.dtype
    return (leaf,) if leaf is None or isinstance(leaf, (bool, str)) else (type(leaf),)


def detect_step(
    program: Callable[[], Any], *, steps: int = 10, seconds: float = 0.0, called: str = "perf_model.detect_step"
) -> DetectedStep:
    """Runs a program to find and time its training step, and returns a `DetectedStep`.

    Context: cross-replica, with no other program in the process.

    Args:
        program: The training program. `detect_step` ends it by an exception in the last timed step.
        steps: The minimum number of steps to time, after two steps that compile and warm up.
        seconds: The minimum total time of the timed steps. It matters for short steps, whose times vary more.
        called: The caller's name, for messages.

    Returns:
        The compiled function with the most calls. If the program ends by itself, fewer steps are timed. A function
        that takes elements of a dataset runs as Python; the step is then its compiled `strategy.run`, and the rest of
        the function counts as the time between two steps.

    Raises:
        ArgumentError: The program calls no compiled function at least three times with the same shapes.
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
    found = max(watch.records.values(), key=lambda one: one[1].totals, default=None)
    if found is None or len(found[1].most_common.step) <= _WARM_UP:
        raise _no_step_error(called, None if found is None else found[1])
    function, record = found
    calls = record.most_common
    steps = 1 if function.steps_per_call is None else int(function.steps_per_call)
    return DetectedStep(
        function,
        record.args,
        record.kwargs,
        record.strategies,
        step_seconds=statistics.median(calls.step[_WARM_UP:]) / steps,
        dispatch_seconds=lower_quartile(calls.dispatch[_WARM_UP:]) / steps,
        between_seconds=statistics.median(calls.between[_WARM_UP:]) / steps,
        first_step_seconds=record.first_ended - watch.began,
        differing=frozenset(calls.differing),
        returned=frozenset(calls.returned),
        steps_per_call=steps,
    )


def _no_step_error(called: str, record: _Record | None) -> ArgumentError:
    found = "the program called no compiled function"
    if record is not None:
        count = record.totals[0]
        found = f"the most-called compiled function was called {count} times"
        if count > _WARM_UP:
            found += f", at most {len(record.most_common.step)} times with the same shapes"
    return ArgumentError(
        called,
        found=found,
        rule=f"the training step must be a mirrored.function; at least {_WARM_UP + 1} calls with the same shapes are "
        "needed to time it",
        remedy="call strategy.run and the rest of the step in a function decorated with mirrored.function, or run "
        "more steps",
    )
