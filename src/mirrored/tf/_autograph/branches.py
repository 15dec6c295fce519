"""The functions that AutoGraph calls in place of `if` statements, `a if cond else b`, `a and b` and `a or b`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._typing import Leaf, Operand, PyTree
from mirrored.tf._autograph.changes import recording, write_all
from mirrored.tf._autograph.closures import isolated
from mirrored.tf._autograph.effects import tracing
from mirrored.tf._autograph.exceptions import controlled
from mirrored.tf._autograph.places import Place
from mirrored.tf._autograph.state import (
    GetState,
    Lost,
    Parts,
    SetState,
    common_dtype,
    is_generated,
    is_inferring,
    is_number,
    is_same,
    is_tensor,
    is_undefined,
    type_mismatch_error,
    uniform,
    with_stand_ins,
    zeros_like,
)
from mirrored.tf._autograph.truth import truth
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.blocks import Block, choose, outer_values, trace_block
from mirrored.tf._ops.tensor_array import refuse_growth
from mirrored.tf._tensors import as_tensor
from mirrored.variables import Variable


def if_stmt(
    cond: object,
    body: Callable[[], None],
    orelse: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    nouts: int,
    rescued: Sequence[str] = (),
    own: Sequence[str] = (),
) -> None:
    """Executes an `if` statement of code that AutoGraph has converted; the condition may be a traced tensor.

    Args:
        cond: The condition.
        body: Runs the true branch, which sets names of the surrounding function.
        orelse: Runs the false branch.
        get_state: Returns the values of the names that a branch changes.
        set_state: Sets their values.
        symbol_names: The names.
        nouts: How many of the names are used afterwards.
        rescued: Those of them that are used only after an exception or by a closure. They need not have a value that
            fits one program.
        own: Other names that only closures in the branches use.

    Raises:
        InvalidArgumentError: The condition is known only at run time, and the branches give a name values that do
            not fit one program.
    """
    known = truth(cond)
    if known is not None:
        body() if known else orelse()
        return
    before = get_state()
    names = symbol_names[:nouts]
    body, orelse = isolated(body, own), isolated(orelse, own)
    with controlled():
        first, values = _traced(body, before, get_state, set_state, names)
        second, other_values = _traced(orelse, before, get_state, set_state, names, list(values))
        if _is_held(values, other_values):
            first, values = _traced(body, before, get_state, set_state, names, list(other_values))
        after = _joined("if", cond, (first, second), (values, other_values), rescued)
    set_state((*(after.pop(name) for name in names), *before[nouts:]))
    write_all((place, value) for place, value in after.items() if isinstance(place, Place))


def if_exp(cond: object, if_true: Callable[[], Any], if_false: Callable[[], Any], expr_repr: str) -> Any:
    """Evaluates a conditional expression, ``a if cond else b``; the condition may be a traced tensor."""
    known = truth(cond)
    if known is not None:
        return if_true() if known else if_false()
    blocks: list[Block] = []
    values: list[dict[str | Place, Any]] = []
    with controlled():
        for branch in (if_true, if_false):
            found: list[Any] = []
            blocks.append(trace_block(_keeping(branch, found)))
            values.append({expr_repr: found[0]})
        return _joined("if", cond, blocks, values)[expr_repr]


def and_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Evaluates ``first() and second()`` in converted code: the first operand if it is false, else the second."""
    value = first()
    known = truth(value)
    if known is None:
        with controlled():
            return _one_of("and", value, second)
    return second() if known else value


def or_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Evaluates ``first() or second()`` in converted code: the first operand if it is true, else the second."""
    value = first()
    known = truth(value)
    if known is None:
        with controlled():
            return _one_of("or", value, second)
    return value if known else second()


def _one_of(operator: str, value: Operand, second: Callable[[], Any]) -> Any:
    """Evaluates ``first and second`` or ``first or second`` for a traced `first`, which selects the result at run time.

    The second operand assigns variables only if it is selected.
    """
    found: list[Any] = []
    block = trace_block(_keeping(second, found))
    first = as_tensor(value)
    if first.dtype == bool and not block.assigned and is_tensor(found[0]) and block.result_types[0].dtype == bool:
        # The usual condition. An expression, unlike a branch, keeps the number of a loop's iterations computable.
        results, _ = block([], outer_values([block]))
        return (jnp.logical_and if operator == "and" else jnp.logical_or)(first, results[0])
    if is_tensor(found[0]) and (first.dtype == bool) != (as_tensor(found[0]).dtype == bool):
        raise InvalidArgumentError.of(
            operator,
            found=f"the operands are {_shown(first)} and {_shown(found[0])}",
            rule="the result is one of the operands, chosen at run time, so both must have one shape and dtype",
            remedy="for a condition, compare the number: x != 0",
        )
    kept: list[Any] = []
    shown = f"first {operator} second"
    blocks = [block, trace_block(_keeping(lambda: value, kept))]
    values: list[dict[str | Place, Any]] = [{shown: found[0]}, {shown: kept[0]}]
    if operator == "or":
        blocks, values = blocks[::-1], values[::-1]
    return _joined(operator, value, blocks, values)[shown]


def _keeping(branch: Callable[[], Any], found: list[Any]) -> Callable[[], list[jax.Array]]:
    def run() -> list[jax.Array]:
        result = uniform(branch())
        found.append(with_stand_ins(result))
        return Parts.of(result).tensors

    return run


def _traced(
    branch: Callable[[], None],
    before: tuple[Any, ...],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    others: Sequence[str | Place] = (),
) -> tuple[Block, dict[str | Place, Any]]:
    """Traces a branch; returns the traced computation and the values of names, items and attributes after it.

    Args:
        branch: Runs the branch.
        before: The values of the names before it.
        get_state: Returns the values of the names.
        set_state: Sets them.
        names: The names of which the values are returned.
        others: Items and attributes that the other branch sets. If one of them holds a list of which this branch sets
            items, its value is returned, too.
    """
    values: dict[str | Place, Any] = {}

    def run() -> list[jax.Array]:
        with recording(branch) as changes:
            with tracing(branch):
                branch()
            values.update(zip(names, uniform(get_state()[: len(names)]), strict=True))
            owners = changes.owners() if others else set()
            held = (one for one in others if isinstance(one, Place) and one.holds_part_of(owners))
            values.update((place, uniform(place.read())) for place in held)
            set_state(before)
            values.update((place, uniform(value)) for place, value in changes.found().items())
        tensors = Parts.of(tuple(values.values())).tensors
        values.update((key, with_stand_ins(value)) for key, value in values.items())
        return tensors

    set_state(before)
    try:
        return trace_block(run), values
    finally:
        set_state(before)


def _is_held(first: Mapping[str | Place, Any], second: Mapping[str | Place, Any]) -> bool:
    """Returns whether the second branch alone sets an attribute or item with a list that the first one changes."""
    owners = {place.identity for place in first if isinstance(place, Place)}
    return any(isinstance(one, Place) and one not in first and one.holds_part_of(owners) for one in second)


def _joined(
    statement: str,
    cond: object,
    blocks: Sequence[Block],
    values: Sequence[Mapping[str | Place, Any]],
    rescued: Sequence[str] = (),
) -> dict[str | Place, Any]:
    """Builds a conditional from two traced branches; returns the resulting value of each name, item and attribute.

    An item that only one branch changes has its former value in the other. Names in `rescued` whose values do not fit
    are lost.
    """
    keys = dict.fromkeys(key for one in values for key in one)
    pieces: dict[str | Place, _Joint] = {}
    lost: dict[str | Place, Any] = {}
    for key in keys:
        first, second = (one[key] if isinstance(key, str) or key in one else uniform(key.read()) for one in values)
        pair = (_variable_as_tensor(first, second, blocks[0]), _variable_as_tensor(second, first, blocks[1]))
        try:
            pieces[key] = _Joint(statement, str(key), *_with_zeros_for_missing(statement, str(key), *pair))
        except InvalidArgumentError:
            if key not in rescued:
                raise
            lost[key] = Lost(key)

    def outputs(number: int, results: list[Any]) -> list[Any]:
        own = iter(results)
        by_name = {key: [next(own) for _ in Parts.of(one).places] for key, one in values[number].items()}
        return [array for key, piece in pieces.items() for array in piece.given(number, by_name.get(key, []))]

    outs = iter(choose(jnp.where(as_tensor(cond), 0, 1), blocks, outputs))
    return {key: piece.result(outs) for key, piece in pieces.items()} | lost


def _with_zeros_for_missing(statement: str, name: str, first: PyTree, second: PyTree) -> tuple[Any, Any]:
    """Returns a variable's value at the end of each branch; an undefined value becomes zeros like the other value.

    A missing value becomes zeros if no later code reads it. So does a `TensorArray` of which no row was written.
    """
    first, second = _with_rows(first, second), _with_rows(second, first)
    missing = [is_undefined(first), is_undefined(second)]
    if not any(missing) or all(missing):
        return first, second
    if not (is_inferring() or is_generated(name)):
        raise type_mismatch_error(
            statement, name, f"gets a value in the {'else' if missing[0] else 'first'} branch only"
        )
    return (zeros_like(second), second) if missing[0] else (first, zeros_like(first))


def _variable_as_tensor(value: PyTree, other: PyTree, block: Block) -> Any:
    """Converts a variable, the result of one branch, to a tensor if the result of the other branch is a tensor.

    The variable is read in the code around the branches, so a variable that the branch assigns stays unchanged.
    """
    if not hasattr(type(value), "__jax_array__") or is_tensor(value) or not is_tensor(other):
        return value
    # The variable behind an object of another class (a Keras variable) is not known here: no assignment is certain.
    is_assigned = any(key[0] == id(value) or not isinstance(value, Variable) for key in block.assigned)
    return value if is_assigned else as_tensor(value)


def _with_rows(value: PyTree, other: PyTree) -> Any:
    """Adds zero rows, shaped like those of the `TensorArray` `other`, to `value` if it is an empty `TensorArray`."""
    grow = getattr(type(value), "__grown__", None)
    if grow is None or type(value) is not type(other) or jax.tree.leaves(value):
        return value
    grown = grow(value, other)
    return value if grown is None else grown


class _Joint:
    """Joins the values that two branches assign to one Python variable."""

    def __init__(self, statement: str, name: str, first: PyTree, second: PyTree) -> None:
        self._statement, self._name = statement, name
        self._parts = (Parts.of(first), Parts.of(second))
        if self._parts[0].treedef != self._parts[1].treedef:
            refuse_growth(first, second)
            raise type_mismatch_error(
                statement, name, f"is {_shown(first)} in one branch and {_shown(second)} in the other"
            )
        self._dtypes = [self._common(one, two) for one, two in zip(*(p.leaves for p in self._parts), strict=True)]

    def _common(self, one: Leaf, two: Leaf) -> Any:
        """Returns the common dtype of one leaf's values in two branches; None if the values are the same."""
        if is_same(one, two):
            return None
        if not (is_tensor(one) and is_tensor(two)):
            raise type_mismatch_error(
                self._statement, self._name, f"is {_shown(one)} in one branch and {_shown(two)} in the other"
            )
        first, second = as_tensor(one), as_tensor(two)
        numbers = is_number(one) or is_number(two)
        if first.shape != second.shape or (first.dtype != second.dtype and not numbers):
            raise type_mismatch_error(
                self._statement, self._name, f"is {_shown(one)} in one branch and {_shown(two)} in the other"
            )
        return common_dtype(one, two)

    def given(self, number: int, tensors: Sequence[Any]) -> list[Any]:
        """Returns one branch's values of those pytree leaves that differ between the two branches.

        Args:
            number: Index of the branch.
            tensors: The branch's own tensors; empty if the name has no value there.
        """
        parts = self._parts[number]
        own = dict(zip(parts.places, tensors if tensors else parts.tensors, strict=True))
        return [jnp.asarray(own[i], dtype) for i, dtype in enumerate(self._dtypes) if dtype is not None]

    def result(self, outs: Iterator[jax.Array]) -> Any:
        """Rebuilds the value of the variable from the outputs of the conditional."""
        leaves = [
            leaf if dtype is None else next(outs)
            for leaf, dtype in zip(self._parts[0].leaves, self._dtypes, strict=True)
        ]
        return self._parts[0].treedef.unflatten(leaves)


def _shown(value: object) -> str:
    if is_tensor(value):
        tensor = as_tensor(value)
        return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]}"
