"""Records special calls on a tape: custom-derivative functions, functions with closures, and `lax.while_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from mirrored._jax import caches
from mirrored._jax.boxes import Array, Box, another_object, device_put_p, payload_of, while_p
from mirrored._jax.closures import Lifted, custom_calls, depends_on_opaque, opaque_arrays, used_constants
from mirrored._jax.custom_derivatives import fill_stores, reset_stores, stores_kept
from mirrored._jax.inlining import as_function, program_of
from mirrored._jax.jaxprs import ClosedJaxpr, aval_of, context_key, is_inexact
from mirrored._jax.traces import Tracer, is_eval_below
from mirrored._typing import Leaf
from mirrored.tape import catalogue
from mirrored.tape.dependencies import finding_dependencies
from mirrored.tape.no_derivative import Key, closed_over
from mirrored.tape.operation import Operation, linearize
from mirrored.tape.record import (
    FailedRecord,
    LinearPullbackRecord,
    PartialAliasRecord,
    PullbackRecord,
    Pulled,
    Record,
    Runner,
    owned_operand,
)
from mirrored.tape.replica_rules import in_context_of_replica
from mirrored.values.stacking import noted_components, stack_components

if TYPE_CHECKING:
    from mirrored._jax.custom_derivatives import WrappedFun
    from mirrored._jax.jaxprs import Primitive
    from mirrored.tape.trace import TapeTrace


# Calls of functions with custom derivative rules (`jax.custom_jvp`, `jax.custom_vjp`) under a tape.
#
# A custom rule gives derivatives only with respect to the arguments. Requesting a gradient with respect to a tracked
# value over which the function closes is an error. (JAX raises one for `custom_vjp` only; for `custom_jvp` it drops the
# tangent.) How the tape finds these values depends on where the call is:
#
# - A call in the code of the tape (`process`): while the function runs, the tape does not record its operations, but
#   notes which tracked values it uses. If no argument is watched, `_call_unwatched` records the results as having no
#   derivative with respect to those values.
# - A call in a traced program: JAX makes the values operands of the call, and thus of the program, and `num_consts`
#   counts them. What only the derivative rules close over becomes an operand in the same way (`_jax.rule_closures`).
#   The rule of the program has no pullback for these operands (`operation.Rule.lost`), and its record is a
#   `PartialRuleRecord`.
# - A call in a traced program whose parameters embed the arrays: `process_lifted` makes them operands, and
#   `refusing_captured_gradients` records that no gradient reaches them through such a call.
#
# Independently of these, a derivative rule inside a traced program that is not traced in advance must not close over a
# value of the current call, because rules are cached (`RuleClosesOverError`).


def process(
    trace: TapeTrace,
    bind: Callable[..., list[Any]],
    function: WrappedFun | None,
    values: list[Any],
    keys: list[Key],
    watched: tuple[int, ...],
    name: str,
    *,
    runs_rule: bool = False,
) -> list[Any]:
    """Applies a custom-derivative function or a `device_put` of tracers, and records the call on a tape.

    The call is linearized when it runs, without caching, so that a derivative rule written in Python sees concrete
    values if there are any.

    Args:
        trace: The trace of the tape.
        bind: Applies the call to operands.
        function: JAX's wrapper of the function that is called. None if it closes over nothing that a tape tracks.
        values: The operands.
        keys: The keys of the watched operands.
        watched: The positions of the watched operands: those that the tape tracks, also intermediate results.
        name: The name of the call in error messages.
        runs_rule: Whether the pullback runs a derivative rule of the user, as that of a `jax.custom_vjp` function.

    Returns:
        The results, tracked if a gradient can pass through them.
    """
    if not watched:
        return _call_unwatched(trace, bind, function, values, name)
    if function is None:
        with trace.under_parent():
            results, pullback = linearize(bind, values, watched)
        touched: list[Key] = []
    else:
        results, pullback, touched = _linearize_noting_uses(trace, bind, values, watched)
    avals = [aval_of(result) for result in results]
    no_derivative = closed_over(touched, name) if touched else None
    kind: type[PullbackRecord] = LinearPullbackRecord
    if runs_rule:
        kind, bind, pullback = PullbackRecord, in_context_of_replica(bind), in_context_of_replica(pullback)
    record = kind(keys, watched, bind, pullback, avals, no_derivative)
    return trace.add(record, results, [is_inexact(aval) for aval in avals], values)


# Transfers between devices (`jax.device_put`).


class _TransferRecord(Record):
    """The tape record of a `jax.device_put` of arrays, whose cotangents move back to where the arrays were."""

    __slots__ = ("shardings",)

    def __init__(self, in_keys: Sequence[Key], watched: tuple[int, ...], shardings: Sequence[Any]) -> None:
        super().__init__(in_keys, watched)
        self.shardings = shardings

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        given = [(place, cotangents[position]) for place, position in enumerate(self.watched)]
        return [
            (place, _moved_back(cotangent, self.shardings[place]))
            for place, cotangent in given
            if cotangent is not None
        ]


def _moved_back(cotangent: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    # The rule of `device_put` for `jax.vmap` (JAX 0.10 to 0.12) applies the sharding to the array with the dimension
    # that `vmap` adds, which the devices may not divide. An empty spec is valid for any number of dimensions.
    if isinstance(payload_of(cotangent), Tracer) and isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=sharding.memory_kind)
    moved: jax.Array = jax.device_put(cotangent, sharding, may_alias=False)
    return moved


def process_transfer(
    trace: TapeTrace, values: list[Any], keys: list[Key], watched: tuple[int, ...], params: dict[str, Any]
) -> list[Any]:
    """Applies a `device_put` with the given parameters, and records it on a tape."""

    def move(*arrays: Any) -> list[Any]:
        return list(device_put_p.bind(*arrays, **params))

    moved = [values[position] for position in watched]
    if not all(type(value) in (Array, Box) for value in moved):  # in a trace, where JAX's own rule is right
        return process(trace, move, None, values, keys, watched, str(device_put_p))
    with trace.under_parent():
        results = move(*values)
    shardings = [
        value.sharding if params["srcs"][position] is None else params["srcs"][position]
        for value, position in zip(moved, watched, strict=True)
    ]
    are_moved = [position in watched and is_inexact(aval_of(result)) for position, result in enumerate(results)]
    return trace.add(_TransferRecord(keys, watched, shardings), results, are_moved, values)


def process_library(
    trace: TapeTrace,
    bind: Callable[..., list[Any]],
    call: tuple[Primitive, WrappedFun, bool],
    rule: WrappedFun,
    values: list[Any],
    keys: list[Key],
    watched: tuple[int, ...],
) -> list[Any]:
    """Applies a JAX library function that has a `custom_jvp` rule, such as `jax.nn.relu`; caches the function's trace.

    Such a function closes over nothing that a tape tracks (`is_from_jax`). If it holds a traced value, as an argument
    that JAX does not differentiate can be, its trace is not reused.

    Args:
        trace: The trace of the tape.
        bind: Applies the call to operands.
        call: What identifies the call: its primitive, JAX's wrapper of the function, and its option `symbolic_zeros`.
        rule: JAX's wrapper of the derivative rule.
        values: The operands.
        keys: The keys of the watched operands.
        watched: The positions of the watched operands.

    Returns:
        The results, tracked if a gradient can pass through them.
    """
    primitive, function, _ = call
    if watched and not any(isinstance(value, Tracer) for value in values):
        operation = _library_operation(trace, bind, call, rule, values)
        if operation is not None:
            results = trace.perform(operation, values, keys, watched)
            reset_stores(rule)
            return results
    return process(trace, bind, None, values, keys, watched, str(primitive))


def _library_operation(
    trace: TapeTrace,
    bind: Callable[..., list[Any]],
    call: tuple[Primitive, WrappedFun, bool],
    rule: WrappedFun,
    values: list[Any],
) -> Operation | None:
    """Returns the operation for a call of a JAX library function; None if the function closes over tracked values."""
    primitive, function, _ = call
    avals = tuple([aval_of(value) for value in values])

    def make() -> catalogue.LibraryCall:
        program = program_of(bind, avals)
        return catalogue.LibraryCall(Operation(program, str(primitive)), program.captured, function)

    with trace.under_parent(), caches.using(None):
        found = catalogue.of_library_call((*call, rule.f, avals, context_key()), make)
    if found is None or found.captured:
        return None
    fill_stores(function, found.function)
    return found.operation


def _linearize_noting_uses(
    trace: TapeTrace, bind: Callable[..., list[Any]], values: list[Any], watched: tuple[int, ...]
) -> tuple[list[Any], Any, list[Key]]:
    """Linearizes a function; returns results, pullback, and the keys of the tracked values that it closes over.

    A watched operand may also be one of the values that the function closes over. Each operand therefore enters the
    call as another object, so that only uses of the closed-over object are noted.
    """
    assert trace.recorder is not None
    distinct = [_untracked_object(trace, value) if id(value) in trace.recorder.known else value for value in values]
    with trace.noting_uses() as touched:
        results, pullback = linearize(bind, distinct, watched)
        results, _, _ = trace.split_operands(results)
        used = list(touched)
        residuals, tree = jax.tree.flatten(pullback)
        residuals, _, _ = trace.split_operands(residuals)
    return results, jax.tree.unflatten(tree, residuals), used


def _call_unwatched(
    trace: TapeTrace, bind: Callable[..., list[Any]], function: WrappedFun | None, values: list[Any], name: str
) -> list[Any]:
    recorder = trace.recorder
    if function is None or recorder is None:
        with trace.under_parent():
            return bind(*values)
    if trace.eager:
        with trace.noting_uses() as touched:
            reset_stores(function)
            results, _, _ = trace.split_operands(list(function.call_wrapped(*values)))
            used = list(touched)
    else:
        with trace.under_parent():
            results = bind(*values)
        used = _used_by(trace, function, values)
    if not used or trace.touched is not None:
        return results
    return trace.add(FailedRecord(closed_over(used, name)), results, [is_inexact(aval_of(r)) for r in results])


def _used_by(trace: TapeTrace, function: WrappedFun, values: list[Any]) -> list[Key]:
    """Returns the tape's keys of the tracked values that `function` closes over.

    It runs the function again for this purpose only. The results are discarded.
    """
    with stores_kept(function), finding_dependencies(), trace.noting_uses() as touched:
        if is_eval_below(trace.parent):
            trace.split_operands(list(function.call_wrapped(*values)))
        else:
            program = program_of(function.call_wrapped, [aval_of(value) for value in values])
            trace.split_operands(used_constants(program))
    return list(touched)


def refusing_captured_gradients(
    trace: TapeTrace, primitive: Primitive, results: list[Any], params: dict[str, Any], name: str
) -> list[Any]:
    """Returns results whose gradients with respect to captured arrays raise an error.

    The arrays are those that functions with custom derivative rules inside the program close over: such a rule has no
    derivative with respect to them. Results that do not depend on such a function stay as they are.
    """
    known = trace.recorder.known if trace.recorder is not None else {}
    arrays = [array for array in opaque_arrays(params) if id(array) in known]
    if not arrays:
        return results
    used = [known[id(array)][0] for array in arrays]
    behind = depends_on_opaque(primitive, params, arrays, len(results))
    values, keys, tracked = trace.split_operands(results)
    passed = [position for position in tracked if behind[position]]
    record = PartialAliasRecord(
        [key for key, position in zip(keys, tracked, strict=True) if behind[position]], passed, closed_over(used, name)
    )
    added = trace.add(record, values, [position in passed for position in range(len(values))])
    return [one if is_behind else other for one, other, is_behind in zip(added, results, behind, strict=True)]


def _untracked_object(trace: TapeTrace, value: Leaf) -> Any:
    """Returns `value` as a new object, which the tape of `trace` does not track."""
    distinct_object = another_object(value) if trace.eager else value  # An outer tape may track the object, too.
    return distinct_object if distinct_object is not value else trace.copied(value)


# Watched arrays that a traced function closes over are in the parameters of its primitive. They become operands, so
# that the operation can be differentiated with respect to them.


class _Stack(NamedTuple):
    """A stacked array in a program, and the array that a tape has recorded in its place.

    The second is what the outer tapes of the tape know, so it becomes the operand.
    """

    array: jax.Array
    recorded: Any


def is_known(trace: TapeTrace, array: jax.Array) -> bool:
    """Returns whether a tape that records tracks an array in a primitive's parameters.

    A compiled function contains the stacked array of the components of a per-replica value over which it closes. If the
    tape tracks components, it records the stacking here.
    """
    recorder = trace.recorder
    assert recorder is not None
    if id(array) in recorder.known:
        return True
    noted = noted_components(array)
    if noted is None or all(recorder.key_of(component, trace) is None for component in noted[0]):
        return False
    with trace.as_current():
        stacked = stack_components(*noted, is_tracked=True)
    key = recorder.key_of(stacked, trace)
    assert key is not None
    is_own = type(stacked) is Box and stacked.owner is trace  # else a box of an outer tape, which this tape knows by id
    recorder.known[id(array)] = (key, _Stack(array, stacked.payload if is_own else stacked))
    return True


def _operand(kept: Any) -> Any:
    return kept.recorded if type(kept) is _Stack else kept


def process_lifted(
    trace: TapeTrace,
    primitive: Primitive,
    params: dict[str, Any],
    arrays: list[Any],
    operands: tuple[list[Any], list[Key], tuple[int, ...]],
) -> Any:
    """Turns the tracked arrays in a primitive's parameters into operands, then applies and records the primitive.

    Args:
        trace: The trace of a tape that records.
        primitive: The primitive.
        params: Its parameters.
        arrays: The watched arrays in the parameters.
        operands: The operands, the keys of the watched ones, and the positions of these.
    """
    recorder = trace.recorder
    assert recorder is not None
    values, keys, watched = operands
    if not watched:  # `split_operands` copies NumPy operands only if one of the operands is watched
        values = [owned_operand(value) for value in values]
    lifted = Lifted(primitive, params, arrays)
    key = (primitive, *params.items(), tuple(map(id, arrays)), "lifted")
    operation = catalogue.of_program(key, lambda: Operation(lifted, str(primitive), custom_calls(params)))
    count = len(arrays)
    results = trace.perform(
        operation,
        [*(_operand(recorder.known[id(array)][1]) for array in arrays), *values],
        [*(recorder.known[id(array)][0] for array in arrays), *keys],
        (*range(count), *(position + count for position in watched)),
    )
    if operation.custom_calls:
        results = refusing_captured_gradients(trace, primitive, results, params, operation.name)
    return results if primitive.multiple_results else results[0]


# `lax.while_loop` under an eager tape, which unrolls the loop.
#
# JAX does not support reverse-mode differentiation of `lax.while_loop`, because a compiled program cannot store
# residuals for an unknown number of iterations. An eager tape runs the iterations one by one and records each. So do
# nested eager tapes, each on top of the next outer one: derivatives of any order work.


def _unrolled_while(trace: TapeTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    condition_consts, body_consts = (
        args[:num_cond],
        args[num_cond : num_cond + num_body],
    )
    state = list(args[num_cond + num_body :])
    condition = _of_jaxpr(params["cond_jaxpr"], "while condition")
    step = _of_jaxpr(params["body_jaxpr"], "while body")
    while trace.apply(condition, [*condition_consts, *state])[0]:
        state = trace.apply(step, [*body_consts, *state])
        if step.custom_calls:
            state = refusing_captured_gradients(trace, while_p, state, {"": params["body_jaxpr"]}, step.name)
    return state


def _of_jaxpr(jaxpr: ClosedJaxpr, name: str) -> Operation:
    return catalogue.of_program((jaxpr, name), lambda: Operation(as_function(jaxpr), name, custom_calls({"": jaxpr})))


UNROLLED: dict[Any, Callable[[TapeTrace, Sequence[Any], dict[str, Any]], list[Any]]] = {while_p: _unrolled_while}
