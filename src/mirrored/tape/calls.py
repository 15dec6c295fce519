"""Functions with derivatives of their own (`jax.custom_jvp`, `jax.custom_vjp`) under a tape.

Their rules speak of their arguments only. What they close over is found while they run: the tape does not record them,
but notes which of the values that it tracks they use. A gradient that is to reach one of those is refused, as by JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from mirrored._jax.boxes import another_object
from mirrored._jax.closures import used_constants
from mirrored._jax.custom_calls import reset_stores, stores_kept
from mirrored._jax.embedded import opaque_arrays
from mirrored._jax.programs import aval_of, is_inexact, program_of
from mirrored._jax.traces import is_eval_below
from mirrored.tape.operation import linearize
from mirrored.tape.record import FailedRecord, Key, LossyRecord, PullbackRecord, closed_over

if TYPE_CHECKING:
    from mirrored.tape.trace import TapeTrace


def process(
    trace: TapeTrace,
    bind: Callable[..., list[Any]],
    function: Any,
    values: list[Any],
    keys: list[Key],
    watched: tuple[int, ...],
    name: str,
) -> list[Any]:
    """Differentiates the call here and now, so that a rule written in Python sees values where there are any.

    Args:
        trace: The tape's.
        bind: The call.
        function: The function that is called, JAX's wrapper of it; None if it cannot close over anything.
        values: The operands.
        keys: The keys of the watched ones.
        watched: Their positions.
        name: For messages.
    """
    if not watched:
        return _call_unwatched(trace, bind, function, values, name)
    if function is None:
        with trace.under_parent():
            results, pullback = linearize(bind, values, watched)
        touched: list[Key] = []
    else:
        results, pullback, touched = _linearized_here(trace, bind, values, watched)
    avals = [aval_of(result) for result in results]
    loss = closed_over(touched, name) if touched else None
    record = PullbackRecord(keys, watched, bind, pullback, avals, loss)
    return trace.add(record, results, [is_inexact(aval) for aval in avals], values)


def _linearized_here(
    trace: TapeTrace, bind: Callable[..., list[Any]], values: list[Any], watched: tuple[int, ...]
) -> tuple[list[Any], Any, list[Key]]:
    """The results, the pullback, and the tracked values that were used besides the operands."""
    assert trace.recorder is not None
    apart = [_another(trace, value) if id(value) in trace.recorder.known else value for value in values]
    with trace.touching() as touched:
        results, pullback = linearize(bind, apart, watched)
        results, _, _ = trace.sort(results)
        used = list(touched)
        residuals, tree = jax.tree.flatten(pullback)
        residuals, _, _ = trace.sort(residuals)
    return results, jax.tree.unflatten(tree, residuals), used


def _call_unwatched(
    trace: TapeTrace, bind: Callable[..., list[Any]], function: Any, values: list[Any], name: str
) -> list[Any]:
    recorder = trace.recorder
    if function is None or recorder is None:
        with trace.under_parent():
            return bind(*values)
    if trace.eager:
        with trace.touching() as touched:
            reset_stores(function)
            results, _, _ = trace.sort(list(function.call_wrapped(*values)))
            used = list(touched)
    else:
        with trace.under_parent():
            results = bind(*values)
        used = _used_by(trace, function, values)
    if not used or trace.touched is not None:
        return results
    return trace.add(FailedRecord(closed_over(used, name)), results, [is_inexact(aval_of(r)) for r in results])


def _used_by(trace: TapeTrace, function: Any, values: list[Any]) -> list[Key]:
    """The tracked values that `function` closes over, found by running it once more: for nothing else."""
    with stores_kept(function), trace.touching() as touched:
        if is_eval_below(trace.parent):
            trace.sort(list(function.call_wrapped(*values)))
        else:
            program = program_of(function.call_wrapped, [aval_of(value) for value in values])
            trace.sort(used_constants(program))
    return list(touched)


def without_embedded(trace: TapeTrace, results: list[Any], params: dict[str, Any], name: str) -> list[Any]:
    """The results of a traced program, cut off from the watched arrays that such functions inside it close over."""
    known = trace.recorder.known if trace.recorder is not None else {}
    used = [known[id(array)][0] for array in opaque_arrays(params) if id(array) in known]
    if not used:
        return results
    values, keys, tracked = trace.sort(results)
    record = LossyRecord(keys, closed_over(used, name))
    return trace.add(record, values, [position in tracked for position in range(len(values))])


def _another(trace: TapeTrace, value: Any) -> Any:
    """The same value as an object that this tape does not know."""
    another = another_object(value) if trace.eager else value  # a tape around this one knows the object, too
    return another if another is not value else trace.copied(value)
