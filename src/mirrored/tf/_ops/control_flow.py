"""`tf.cond`, `tf.while_loop`, `tf.case` and similar functions.

Eagerly, these run as Python: branches and iterations execute directly, with prints, variables and any shapes. While
`tf.function` traces, they become `lax.cond` and `lax.while_loop`.

A traced loop supports gradients (in JAX: becomes a scan) if its number of iterations is known, either because its
condition depends only on constants and counters, or because `maximum_iterations` is given, up to 10,000,000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.traces import NotConstant, evaluate
from mirrored._typing import Operand, PyTree
from mirrored.errors import MirroredError
from mirrored.runtime.recomputing import recomputed
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._nest import assert_same_structure, flatten, pack_sequence_as
from mirrored.tf._ops.arrays import executing_eagerly
from mirrored.tf._ops.blocks import choose, stand_in, trace_block
from mirrored.tf._ops.loops import Loop, LoopMismatch, unroll
from mirrored.tf._ops.tensor_array import GrowingArrayError, TensorArray, refuse_growth
from mirrored.tf._static import static_int
from mirrored.tf._table import op
from mirrored.tf._tensors import as_tensor

_Branch: TypeAlias = Callable[[], Any]
_Numbered: TypeAlias = Mapping[int, _Branch] | Sequence[_Branch | tuple[int, _Branch]]
_Tested: TypeAlias = Mapping[Operand, _Branch] | Iterable[tuple[Operand, _Branch]]


def _tensors_of(structure: PyTree) -> list[jax.Array]:
    """Returns the tensors of a structure, including those in each `tf.TensorArray`; skips None."""
    return [tensor for one in flatten(structure) for tensor in jax.tree.leaves(_state(one))]


def _state(one: Operand | TensorArray | None) -> Any:
    """Converts a loop variable to a tensor; returns a `tf.TensorArray` or None unchanged."""
    return one if one is None or isinstance(one, TensorArray) else as_tensor(one)


def _refilled(structure: PyTree, tensors: Sequence[jax.Array]) -> Any:
    """Replaces the tensors of a structure by `tensors`, in order; None entries stay None."""
    iterator = iter(tensors)
    filled = [jax.tree.map(lambda _: next(iterator), _state(one)) for one in flatten(structure)]
    return pack_sequence_as(structure, filled)


def _with_stand_ins(structure: PyTree) -> Any:
    """Replaces the tensors of the traced block in its result by placeholders (`stand_in`)."""
    return pack_sequence_as(structure, [jax.tree.map(stand_in, one) for one in flatten(structure)])


def _is_grown(before: object, after: object) -> bool:
    """Returns whether a loop body converts a `tf.TensorArray` from separate tensors to one stacked tensor."""
    return isinstance(before, TensorArray) and isinstance(after, TensorArray) and before.__grown__(after) is not None


def known_bool(value: Operand) -> bool | None:
    """Returns a scalar tensor as a Python bool, or None if its value is known only at run time."""
    try:
        return bool(as_tensor(value))
    except jax.errors.ConcretizationTypeError:
        pass
    try:
        return bool(evaluate(as_tensor(value)))
    except NotConstant:
        return None


@op("cond")
def cond(pred: Operand, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None) -> Any:
    """Calls `true_fn` if the condition `pred` is true, otherwise `false_fn`, and returns the result.

    Calls only one of them if `pred` is known. While tracing an unknown `pred`, both are traced and must return the same
    structure.

    Raises:
        InvalidArgumentError: The branches return different structures, shapes or dtypes.
    """
    del name
    known = known_bool(pred)
    if known is not None:
        return true_fn() if known else false_fn()
    return _traced_branches("tf.cond", (as_tensor(pred) == 0).astype(jnp.int32), [true_fn, false_fn])


def _traced_branches(called: str, index: jax.Array, branches: Sequence[Callable[[], Any]]) -> Any:
    structures: list[Any] = []

    def flat(branch: Callable[[], Any]) -> Callable[[], list[jax.Array]]:
        def run() -> list[jax.Array]:
            result = branch()
            structures.append(_with_stand_ins(result))
            return _tensors_of(result)

        return run

    blocks = [trace_block(flat(one)) for one in branches]
    for other in structures[1:]:
        assert_same_structure(structures[0], other)
        for one, two in zip(flatten(structures[0]), flatten(other), strict=True):
            refuse_growth(one, two)
    for other in blocks[1:]:
        _check_alike(called, blocks[0].result_types, other.result_types)
    return _refilled(structures[0], choose(index, blocks))


def _check_alike(called: str, first: Sequence[Any], other: Sequence[Any]) -> None:
    for one, two in zip(first, other, strict=True):
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            raise InvalidArgumentError.of(
                called,
                found=f"one branch returns {one.str_short()}, another {two.str_short()}",
                rule="if the branch is chosen at run time, branches must return the same structure, shapes and dtypes",
                remedy="cast and reshape the results of the branches, or choose with a Python value",
            )


@op("switch_case")
def switch_case(
    branch_index: Operand, branch_fns: _Numbered, default: Callable[[], Any] | None = None, name: str | None = None
) -> Any:
    """Calls the function whose index is `branch_index`, or `default` if no index matches, and returns the result.

    Without `default`, an index that no function has calls the last function.
    """
    del name
    numbered = _numbered(branch_fns)
    other = default if default is not None else numbered[-1][1]
    keys = jnp.asarray([key for key, _ in numbered])
    place = jnp.argmax(jnp.append(as_tensor(branch_index) == keys, True))
    branches = [function for _, function in numbered] + [other]
    try:
        known = int(place) if executing_eagerly() else int(evaluate(place))
    except (NotConstant, jax.errors.ConcretizationTypeError):
        return _traced_branches("tf.switch_case", place, branches)
    return branches[known]()


def _numbered(branch_fns: Mapping[int, _Branch] | Sequence[Any]) -> list[tuple[int, Callable[[], Any]]]:
    if isinstance(branch_fns, Mapping):
        return sorted(branch_fns.items())
    if branch_fns and callable(branch_fns[0]):
        return list(enumerate(branch_fns))
    return sorted(branch_fns)


@op("case")
def case(
    pred_fn_pairs: _Tested,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """Calls the function of the first true condition, or `default` if no condition is true, and returns the result.

    Without `default`, the last function is called if no condition is true.

    Raises:
        InvalidArgumentError: With `exclusive`, more than one condition holds (checked for known conditions).
    """
    del strict, name
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, Mapping) else list(pred_fn_pairs)
    if exclusive and sum(known_bool(test) or False for test, _ in pairs) > 1:
        raise InvalidArgumentError.of(
            "tf.case",
            found="more than one condition is true",
            rule="with exclusive=True at most one condition can be true",
            remedy="make the conditions disjoint, or omit `exclusive`",
        )
    chosen = pairs[-1][1] if default is None else default
    for test, function in reversed(pairs if default is not None else pairs[:-1]):
        chosen = _chained(test, function, chosen)
    return chosen()


def _chained(test: Operand, function: Callable[[], Any], otherwise: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: cond(test, function, otherwise)


@op("while_loop")
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[PyTree],
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: SupportsIndex | None = None,
    name: str | None = None,
) -> Any:
    """Replaces the loop variables by ``body(*loop_vars)`` as long as ``cond(*loop_vars)`` is true.

    Returns:
        The final loop variables, in the structure of `loop_vars`.

    Raises:
        InvalidArgumentError: While tracing, the body changes the structure, a shape or a dtype of the loop variables.
    """
    del shape_invariants, parallel_iterations, back_prop, swap_memory, name
    limit = (
        None
        if maximum_iterations is None
        else static_int(maximum_iterations, called="tf.while_loop", argument="maximum_iterations")
    )
    if executing_eagerly():
        return _python_loop(cond, body, loop_vars, limit)
    try:
        return _traced_loop(cond, body, loop_vars, limit)
    except GrowingArrayError as error:
        return _unrolled(cond, body, loop_vars, limit, error)


def _unrolled(
    test: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: PyTree,
    limit: int | None,
    refused: GrowingArrayError,
) -> Any:
    """Traces each loop iteration separately; raises the error `refused` if a condition is not known while tracing."""
    state: Any = loop_vars

    def step() -> None:
        nonlocal state
        state = _packed_like(loop_vars, body(*state))

    unroll(lambda: known_bool(test(*state)), step, limit, refused)
    return pack_sequence_as(loop_vars, [_state(one) for one in flatten(state)])


def _python_loop(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: PyTree, limit: int | None) -> Any:
    state, count = loop_vars, 0
    while (limit is None or count < limit) and bool(as_tensor(cond(*state))):
        state, count = _packed_like(loop_vars, body(*state)), count + 1
    return pack_sequence_as(loop_vars, [_state(one) for one in flatten(state)])


def _packed_like(loop_vars: PyTree, result: PyTree) -> Any:
    """Converts the result of a loop body to a list with one item per loop variable, structured like that variable.

    As in TensorFlow, the items of a list or tuple are the loop variables, and lists and tuples are interchangeable. The
    body of a loop over one tensor may return that tensor; here, the body of a loop over one dict may return that dict.

    Raises:
        InvalidArgumentError: The result has another structure.
    """
    after = list(result) if isinstance(result, (list, tuple)) else [result]
    try:
        assert_same_structure(list(loop_vars), after, check_types=False)
    except ValueError as error:
        raise InvalidArgumentError.of(
            "tf.while_loop",
            found=f"the body returned {_shown(result)} for the loop variables {_shown(loop_vars)}",
            rule="the body must return one value per loop variable, each of the structure of that variable",
            remedy="return a list with one item per item of `loop_vars`, even for a single structure: [{'a': a}]",
        ) from error
    return pack_sequence_as(list(loop_vars), flatten(after))


def _shown(structure: PyTree) -> str:
    """Formats the structure of loop variables for an error message, with ``*`` for each value."""
    return str(pack_sequence_as(structure, ["*"] * len(flatten(structure)))).replace("'*'", "*")


def _traced_loop(test: Callable[..., Any], body: Callable[..., Any], loop_vars: PyTree, limit: int | None) -> Any:
    after: Any = loop_vars

    def holds(flat: Sequence[jax.Array]) -> jax.Array:
        return as_tensor(test(*_refilled(loop_vars, flat)))

    def step(flat: Sequence[jax.Array]) -> Sequence[jax.Array]:
        nonlocal after
        result = _packed_like(loop_vars, body(*_refilled(loop_vars, flat)))
        after = _with_stand_ins(result)
        grows = any(_is_grown(one, other) for one, other in zip(flatten(loop_vars), flatten(after), strict=False))
        return flat if grows else _tensors_of(result)  # `flat` is ignored: the body is traced again

    try:
        loop = Loop.traced(_tensors_of(loop_vars), step, holds)
        grown = [
            one.__grown__(other) if _is_grown(one, other) else one
            for one, other in zip(flatten(loop_vars), flatten(after), strict=False)
        ]
        if any(new is not one for new, one in zip(grown, flatten(loop_vars), strict=True)):
            return _traced_loop(test, body, pack_sequence_as(loop_vars, grown), limit)
        flat = loop.run(limit=limit)
    except (LoopMismatch, ValueError) as error:
        if isinstance(error, (MirroredError, jax.errors.JAXTypeError)):
            raise
        found = (
            f"a loop variable changed from {error.before} to {error.after}"
            if isinstance(error, LoopMismatch)
            else str(error)
        )
        raise InvalidArgumentError.of(
            "tf.while_loop",
            found=found.partition("\n")[0],
            rule="in traced code, the body must keep the structure, shapes and dtypes of the loop variables",
            remedy="start with loop variables of the shape and dtype that the body returns (tf.cast), or run eagerly",
        ) from error
    return _refilled(loop_vars, flat)


@op("recompute_grad", named=False)
def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `f` with intermediate values recomputed in the backward pass, not stored (`jax.checkpoint`).

    Arguments that are not arrays, such as ``training=True`` and ``axis=1``, reach `f` as they are. Random numbers are
    the same in both passes, and variables that `f` assigns, such as moving averages, change once.
    """
    return recomputed(f, "tf.recompute_grad")


@op("grad_pass_through", named=False)
def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `f` with the gradient of the identity function (a straight-through estimator)."""

    def run(x: Operand, *args: Any, **kwargs: Any) -> Any:
        value = as_tensor(x)
        result = lax.stop_gradient(as_tensor(f(value, *args, **kwargs)))
        if result.shape != value.shape:
            raise InvalidArgumentError.of(
                "tf.grad_pass_through",
                found=f"the function returned the shape {result.shape} for an argument of shape {value.shape}",
                rule="the gradient of the result is that of the argument, so their shapes must be equal",
                remedy="change the shape outside of the function, or define the gradient with tf.custom_gradient",
            )
        return _passing(value, result) if jnp.issubdtype(result.dtype, jnp.inexact) else result

    return run


@jax.custom_jvp
def _passing(value: jax.Array, result: jax.Array) -> Any:
    """Returns `result`, but passes its gradient to `value` unchanged: a straight-through estimator.

    The usual sum of `value` and a constant difference would be rounded.
    """
    del value
    return result


_passing.defjvp(lambda values, tangents: (values[1], jnp.asarray(tangents[0], values[1].dtype)))
