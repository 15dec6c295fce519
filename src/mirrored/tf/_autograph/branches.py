"""The functions that AutoGraph calls in place of `if` statements and conditional expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._typing import Leaf, PyTree
from mirrored.tf._autograph.state import (
    RETURN_VALUE,
    GetState,
    Parts,
    SetState,
    is_inferring,
    is_number,
    is_same,
    is_tensor,
    is_undefined,
    unlike,
    zeros_like,
)
from mirrored.tf._autograph.truth import truth
from mirrored.tf._ops.blocks import Block, choose, trace_block
from mirrored.tf._tensors import as_tensor

_PLACEHOLDERS = (RETURN_VALUE, "do_return", "break_", "continue_")


def if_stmt(
    cond: object,
    body: Callable[[], None],
    orelse: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    nouts: int,
) -> None:
    """Executes an `if` statement in code that AutoGraph has converted, also if its condition is a traced tensor.

    Args:
        cond: The condition.
        body: Runs the true branch, which sets names of the surrounding function.
        orelse: Runs the false branch.
        get_state: Returns the values of the names that a branch changes.
        set_state: Sets their values.
        symbol_names: The names.
        nouts: How many of the names are used afterwards.

    Raises:
        InvalidArgumentError: The condition is known only at run time, and the branches give a name values that do
            not fit one program.
    """
    known = truth(cond)
    if known is not None:
        body() if known else orelse()
        return
    before = get_state()
    first, first_values = _traced(body, before, get_state, set_state, nouts)
    second, second_values = _traced(orelse, before, get_state, set_state, nouts)
    after = _joined("if", cond, (first, second), (first_values, second_values), symbol_names)
    set_state((*after, *before[nouts:]))


def if_exp(cond: object, if_true: Callable[[], Any], if_false: Callable[[], Any], expr_repr: str) -> Any:
    """Evaluates a conditional expression, ``a if cond else b``, also if its condition is a traced tensor."""
    known = truth(cond)
    if known is not None:
        return if_true() if known else if_false()
    blocks, values = [], []
    for branch in (if_true, if_false):
        found: list[Any] = []
        blocks.append(trace_block(_keeping(branch, found)))
        values.append((found[0],))
    return _joined("if", cond, blocks, values, (expr_repr,))[0]


def _keeping(branch: Callable[[], Any], found: list[Any]) -> Callable[[], list[jax.Array]]:
    def run() -> list[jax.Array]:
        found.append(branch())
        return Parts.of(found[0]).tensors

    return run


def _traced(
    branch: Callable[[], None], before: tuple[Any, ...], get_state: GetState, set_state: SetState, nouts: int
) -> tuple[Block, tuple[Any, ...]]:
    """Traces a branch, and returns it with the values that the Python variables have at its end."""
    values: tuple[Any, ...] = ()

    def run() -> list[jax.Array]:
        nonlocal values
        branch()
        values = get_state()[:nouts]
        return Parts.of(values).tensors

    set_state(before)
    try:
        return trace_block(run), values
    finally:
        set_state(before)


def _joined(
    statement: str,
    cond: object,
    blocks: Sequence[Block],
    values: Sequence[tuple[Any, ...]],
    names: Sequence[str],
) -> list[Any]:
    """Returns the value of each Python variable after a branch that is chosen at run time."""
    pairs = [_defined(statement, name, *pair) for name, *pair in zip(names, *values, strict=False)]
    pieces = [_Joint(statement, name, *pair) for name, pair in zip(names, pairs, strict=False)]

    def outputs(number: int, results: list[Any]) -> list[Any]:
        original = Parts.of(tuple(values[number]))
        own = iter(results)
        by_name = [[next(own) for _ in Parts.of(one).places] for one in values[number]]
        assert len(original.places) == len(results)
        return [array for piece, tensors in zip(pieces, by_name, strict=True) for array in piece.given(number, tensors)]

    outs = iter(choose(jnp.where(as_tensor(cond), 0, 1), blocks, outputs))
    return [piece.result(outs) for piece in pieces]


def _defined(statement: str, name: str, first: PyTree, second: PyTree) -> tuple[Any, Any]:
    """Returns the values of a variable in both branches; a missing one becomes zeros if no later code reads it."""
    missing = [is_undefined(first), is_undefined(second)]
    if not any(missing) or all(missing):
        return first, second
    if not (is_inferring() or name.startswith(_PLACEHOLDERS)):
        raise unlike(statement, name, f"gets a value in the {'else' if missing[0] else 'first'} branch only")
    return (zeros_like(second), second) if missing[0] else (first, zeros_like(first))


class _Joint:
    """Joins the values that two branches assign to one Python variable."""

    def __init__(self, statement: str, name: str, first: PyTree, second: PyTree) -> None:
        self._statement, self._name = statement, name
        self._parts = (Parts.of(first), Parts.of(second))
        if self._parts[0].treedef != self._parts[1].treedef:
            raise unlike(statement, name, f"is {_shown(first)} in one branch and {_shown(second)} in the other")
        self._dtypes = [self._common(one, two) for one, two in zip(*(p.leaves for p in self._parts), strict=True)]

    def _common(self, one: Leaf, two: Leaf) -> Any:
        """Returns the dtype of a leaf that differs; None for one that both branches leave unchanged."""
        if is_same(one, two):
            return None
        if not (is_tensor(one) and is_tensor(two)):
            raise unlike(self._statement, self._name, f"is {_shown(one)} in one branch and {_shown(two)} in the other")
        first, second = as_tensor(one), as_tensor(two)
        numbers = is_number(one) or is_number(two)
        if first.shape != second.shape or (first.dtype != second.dtype and not numbers):
            raise unlike(self._statement, self._name, f"is {_shown(one)} in one branch and {_shown(two)} in the other")
        return jnp.result_type(*(leaf if is_number(leaf) else as_tensor(leaf) for leaf in (one, two)))

    def given(self, number: int, tensors: Sequence[Any]) -> list[Any]:
        """Returns a branch's outputs for the leaves that differ.

        Args:
            number: Index of the branch.
            tensors: The branch's own tensors; empty if the name has no value there.
        """
        parts = self._parts[number]
        own = dict(zip(parts.places, tensors if tensors else parts.tensors, strict=True))
        return [jnp.asarray(own[i], dtype) for i, dtype in enumerate(self._dtypes) if dtype is not None]

    def result(self, outs: Iterator[jax.Array]) -> Any:
        """Returns the value of the variable after the branch."""
        leaves = [
            leaf if dtype is None else next(outs)
            for leaf, dtype in zip(self._parts[0].leaves, self._dtypes, strict=True)
        ]
        return jax.tree.unflatten(self._parts[0].treedef, leaves)


def _shown(value: object) -> str:
    if is_tensor(value):
        tensor = as_tensor(value)
        return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]}"
