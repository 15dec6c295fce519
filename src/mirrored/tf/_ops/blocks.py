"""Traces branches and loop bodies that read and assign variables, for `lax.cond` and `lax.while_loop`.

A block may read and assign variables. Each variable that a block reads becomes an extra input of the block, and each
variable that it assigns an extra result. A branch that is not taken thus assigns nothing, and an iteration of a loop
reads what the previous iteration assigned.

As everywhere, an assignment has no derivative: under a tape, the gradient of a value that a block reads flows to the
variable's value before the outermost block, not through what has been assigned in a block (`with_gradients_to_old`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
from jax import lax

from mirrored._jax.inlining import Staged, stage
from mirrored._jax.traces import CaptureTracer, belongs_to, current_trace, trace_below_tapes
from mirrored._typing import Leaf
from mirrored.runtime.ambient import ambient, announce_read, within
from mirrored.runtime.eager_operation import in_eager_operation, within_eager_operation
from mirrored.runtime.staged_values import Bookkeeping, Held, VariableLike, read_assigned, take_values
from mirrored.runtime.variable_store import VariableStore, is_under_tape

# A variable's id, and the local replica that reads or assigns its component; None for a variable as a whole.
Key = tuple[int, int | None]


@dataclasses.dataclass(frozen=True)
class _Entry(Bookkeeping):
    """An input of a traced branch or loop body: the value of one variable at the start of the body."""

    key: Key
    variable: Any

    def __str__(self) -> str:
        return f"variable {self.variable.name!r}"


class BlockStore(VariableStore):
    """The storage of variable assignments while a branch or loop body is being traced.

    Args:
        outer: The variable store of the code around the block.

    Attributes:
        staged: The values that the block has assigned.
        entries: The values that it has read before assigning them.
    """

    captures = True
    outer: VariableStore

    def __init__(self, outer: VariableStore) -> None:
        self.outer = outer
        self.num_local = outer.num_local
        self.staged: dict[Key, Held] = {}
        self.entries: dict[Key, CaptureTracer] = {}
        self._where: dict[Key, str] = {}
        self.under_tape = is_under_tape(ambient()) or outer.under_tape
        self.keeps_derivatives = outer.keeps_derivatives and not self.under_tape

    def is_assigned(self, variable: VariableLike) -> bool:
        return any(key[0] == id(variable) for key in self.staged) or super().is_assigned(variable)

    def outermost(self) -> VariableStore:
        return self.outer.outermost()

    def whole(self, variable: VariableLike) -> Any:
        return self._read(variable, None)

    def local(self, variable: VariableLike, replica: int) -> Any:
        return self._read(variable, self._place(variable, replica))

    def set_whole(self, variable: VariableLike, value: jax.Array, where: str) -> None:
        self._write(variable, None, value, where)

    def set_local(self, variable: VariableLike, replica: int, value: jax.Array, where: str) -> None:
        self._write(variable, self._place(variable, replica), value, where)

    def created(self, variable: VariableLike) -> None:
        self.outer.created(variable)

    def _place(self, variable: VariableLike, replica: int) -> int | None:
        return replica if variable.per_replica or self.num_local > 1 else None

    def _read(self, variable: VariableLike, replica: int | None) -> Any:
        key = (id(variable), replica)
        if key in self.staged:
            self.outermost().rereads = True
            newest = self.staged[key].value
            return read_assigned(variable, newest, lambda one: self._entry(key, one)) if self.under_tape else newest
        return self._entry(key, variable)

    def _entry(self, key: Key, variable: VariableLike) -> CaptureTracer:
        replica = key[1]
        if key not in self.entries:
            # A placeholder for the value at the start of the block: the loop or branch binds it as an operand, so that
            # a later iteration reads the assignments of the previous one.
            has_components = variable.per_replica and replica is None and not self.aggregates
            shape = variable.stored_shape() if has_components else variable.component_shape
            self.entries[key] = CaptureTracer(shape, variable.dtype, _Entry(key, variable))
        return self.entries[key]

    def _write(self, variable: VariableLike, replica: int | None, value: jax.Array, where: str) -> None:
        self.note(variable)
        key = (id(variable), replica)
        self.staged[key] = Held(variable, value)
        self._where[key] = where

    def restoring(self, variable: VariableLike) -> Callable[[], None]:
        before = {key: held for key, held in self.staged.items() if key[0] == id(variable)}

        def restore() -> None:
            for key in [key for key in self.staged if key[0] == id(variable)]:
                del self.staged[key]
            self.staged.update(before)

        return restore

    def entered(self, key: Key, value: jax.Array, before: jax.Array) -> Any:
        """Returns a variable's value in a loop; under a tape, its gradient flows to the value `before` the loop."""
        self.outermost().rereads = True
        return read_assigned(self.staged[key].variable, value, lambda _: before) if self.under_tape else value

    def outer_value(self, key: Key, variable: VariableLike) -> Any:
        """Returns the value that a variable had before the branch or loop."""
        replica = key[1]
        value = self.outer.whole(variable) if replica is None else self.outer.local(variable, replica)
        return announce_read(variable, value)

    def commit(self, key: Key, value: jax.Array) -> None:
        """Assigns the final value of a branch or loop to a variable of the surrounding code."""
        variable, where = self.staged[key].variable, self._where[key]
        if key[1] is None:
            self.outer.set_whole(variable, value, where)
        else:
            self.outer.set_local(variable, key[1], value, where)


@dataclasses.dataclass(frozen=True)
class Block:
    """The traced program of a branch or loop body, and the variables that it reads and assigns.

    Attributes:
        staged: Its program.
        store: Its variable store; None outside functions.
        count: Its number of results, excluding assigned variables.
    """

    staged: Staged
    store: BlockStore | None
    count: int

    @property
    def result_types(self) -> list[Any]:
        """The shape and dtype of each result of the branch or loop body."""
        return [one.aval for one in self.staged.jaxpr.outvars[: self.count]]

    @property
    def assigned(self) -> list[Key]:
        """The keys, ``(variable id, replica)``, of the variables that the branch or loop body assigns."""
        return [] if self.store is None else list(self.store.staged)

    def __call__(self, inputs: Sequence[Any], entries: Mapping[Key, Any]) -> tuple[list[Any], dict[Key, Any]]:
        """Evaluates the branch or loop body; returns its results, and the values that it assigns to variables."""
        outs = self.staged([_entered(one, entries) for one in self.staged.constants], inputs)
        return outs[: self.count], dict(zip(self.assigned, outs[self.count :], strict=True))


def _entered(constant: object, entries: Mapping[Key, Any]) -> Any:
    source = constant.source if isinstance(constant, CaptureTracer) else None
    # An entry of an enclosing block is not in `entries`, and stays: that block will replace it.
    return entries.get(source.key, constant) if isinstance(source, _Entry) else constant


def stand_in(leaf: Leaf) -> Any:
    """Returns a placeholder with the shape and dtype of a tensor that the traced block has computed.

    Code that compares the results of blocks after their traces keeps placeholders: the tensors are invalid then, and
    `jax.checking_leaks` reports those to which something refers. Other values, such as tensors from outside of the
    block, are returned unchanged.
    """
    if not belongs_to(leaf, trace_below_tapes(current_trace())):
        return leaf
    return CaptureTracer(leaf.shape, leaf.dtype, "a result of a branch or loop body", weak_type=leaf.weak_type)


def trace_block(function: Callable[..., Sequence[Any]], inputs: Sequence[Any] = ()) -> Block:
    """Traces a branch or loop body, and records which variables it reads and assigns.

    Args:
        function: Maps arrays to arrays.
        inputs: Arrays, or their shapes and dtypes.
    """
    outer = ambient().store
    store = BlockStore(outer) if outer is not None and outer.captures else None
    context = within_eager_operation if in_eager_operation() else nullcontext
    count = 0

    def flat(*arrays: jax.Array) -> list[Any]:
        nonlocal count
        if store is not None:
            store.base_trace = trace_below_tapes(current_trace())
        with context():
            results = list(function(*arrays))
        count = len(results)
        return [*results, *([] if store is None else take_values(store.staged))]

    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in inputs]
    if store is None:
        return Block(stage(flat, shapes), None, count)
    with within(store=store, listeners=(store,)):
        staged = stage(flat, shapes)
    return Block(staged, store, count)


def outer_values(blocks: Iterable[Block]) -> dict[Key, Any]:
    """Returns the current values of all variables that the given branches or loop bodies read or assign."""
    found: dict[Key, Any] = {}
    for block in blocks:
        if block.store is None:
            continue
        read = {key: tracer.source.variable for key, tracer in block.store.entries.items()}
        assigned = {key: held.variable for key, held in block.store.staged.items()}
        for key, variable in {**read, **assigned}.items():
            if key not in found:
                found[key] = block.store.outer_value(key, variable)
    return found


def commit(blocks: Sequence[Block], keys: Sequence[Key], values: Sequence[Any]) -> None:
    """Stores the final values of a traced branch or loop in the variables that it assigns."""
    for key, value in zip(keys, values, strict=True):
        block = next(one for one in blocks if key in one.assigned)
        assert block.store is not None
        block.store.commit(key, value)


def carried_over(
    blocks: Sequence[Block], keys: Sequence[Key], values: Sequence[Any], entries: Mapping[Key, Any]
) -> dict[Key, Any]:
    """Returns the values of all variables in a loop iteration; those that the loop does not assign stay unchanged.

    Args:
        blocks: The body of the loop, and its condition if that assigns variables.
        keys: The variables that they assign.
        values: Their values after the previous iteration.
        entries: The values of all variables before the loop.
    """
    stores = {key: block.store for block in blocks for key in block.assigned if block.store is not None}
    pairs = zip(keys, values, strict=True)
    return {**entries, **{key: stores[key].entered(key, value, entries[key]) for key, value in pairs}}


def assigned_by(blocks: Sequence[Block]) -> list[Key]:
    """Returns the keys, ``(variable id, replica)``, of all variables that at least one of the branches assigns."""
    return list(dict.fromkeys(key for block in blocks for key in block.assigned))


def choose(
    index: jax.Array, blocks: Sequence[Block], outputs: Callable[[int, list[Any]], list[Any]] | None = None
) -> list[Any]:
    """Runs one of several traced branches, selected by an index at run time, and applies its variable assignments.

    Args:
        index: Index of the block (int32 scalar).
        blocks: Blocks without inputs.
        outputs: Maps a block's index and results to results of the same types for all blocks. Default: the results.
    """
    entries, keys = outer_values(blocks), assigned_by(blocks)

    def branch(number: int) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            results, assigned = blocks[number]([], entries)
            shown = results if outputs is None else outputs(number, results)
            return [*shown, *(assigned.get(key, entries[key]) for key in keys)]

        return run

    branches = [branch(number) for number in range(len(blocks))]
    if len(branches) == 2:
        outs = lax.cond(index == 0, branches[0], branches[1])
    else:
        outs = lax.switch(index, branches)
    count = len(outs) - len(keys)
    commit(blocks, keys, outs[count:])
    return list(outs[:count])
