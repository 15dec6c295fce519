"""Converts a function that reads and assigns variables to a pure function, for export from the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import jit_key
from mirrored._jax.capture import CaptureTracer
from mirrored._jax.staging import stage
from mirrored._jax.traces import current_trace, is_tracer
from mirrored.errors import ArgumentError
from mirrored.runtime.ambient import within
from mirrored.runtime.variable_store import FunctionStore
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues
from mirrored.variables import Variable


@dataclasses.dataclass(frozen=True)
class Pure:
    """A pure function, with its state as explicit inputs and outputs.

    Attributes:
        call: A function from the values of `reads` and the inputs, as flat lists, to the new values of `assigns` and
            the arrays of the results, as one flat list.
        reads: The variables that it reads.
        assigns: The variables that it assigns.
        output: The structure of its result, with ``jax.ShapeDtypeStruct`` for arrays.
    """

    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    reads: tuple[Any, ...]
    assigns: tuple[Any, ...]
    output: Any


def as_pure(python_function: Callable[..., Any], inputs: Any, called: str) -> Pure:
    """Traces a function for these inputs and returns it as a pure function.

    Args:
        python_function: A Python function that may read and assign variables, such as `Function.python_function`.
        inputs: Its positional arguments, a tuple with ``jax.ShapeDtypeStruct`` for arrays.
        called: The caller's name for messages.

    Raises:
        ArgumentError: The function creates variables, returns per-replica values, or uses values of an enclosing
            trace.
    """
    store = FunctionStore()
    leaves, treedef = structures.flatten(inputs)
    dynamic = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
    results: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        store.base_trace = current_trace()
        filled = list(leaves)
        for place, array in zip(dynamic, arrays, strict=True):
            filled[place] = array
        with within(store=store, listeners=(store,)):
            out = python_function(*structures.unflatten(treedef, filled))
            out_leaves, out_tree = structures.flatten(out)
            # An exported program returns values, so a variable in the result is read.
            out_leaves = [leaf.read_value() if isinstance(leaf, Variable) else leaf for leaf in out_leaves]
        results[:] = [out_tree, *out_leaves]
        arrays_out = [jnp.asarray(leaf) for leaf in out_leaves if _is_array(leaf)]
        return [*(jnp.asarray(value) for _, value in store.staged.values()), *arrays_out]

    with jit_key.fresh():
        staged = stage(flat, [leaves[place] for place in dynamic])
    out_tree, *out_leaves = results
    _check(store, staged.constants, out_leaves, called)
    reads = tuple(variable for variable, _ in store.captured.values())
    places = {id(variable): place for place, variable in enumerate(reads)}
    sources = [places[id(one.source)] if isinstance(one, CaptureTracer) else None for one in staged.constants]

    def call(state: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        pairs = zip(sources, staged.constants, strict=True)
        result: list[Any] = staged([one if at is None else state[at] for at, one in pairs], operands)
        return result

    described = [jax.ShapeDtypeStruct(one.shape, one.dtype) if _is_array(one) else one for one in out_leaves]
    assigns = tuple(variable for variable, _ in store.staged.values())
    return Pure(call, reads, assigns, structures.unflatten(out_tree, described))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _check(store: FunctionStore, constants: Sequence[Any], out_leaves: Sequence[Any], called: str) -> None:
    found = None
    if store.new:
        found = f"the function creates variables ({', '.join(one.name for one in store.new)})"
    elif any(isinstance(leaf, DistributedValues) for leaf in out_leaves):
        found = "the function returns per-replica values"
    elif any(is_tracer(one) and not isinstance(one, CaptureTracer) for one in constants):
        found = "the function uses a value of an enclosing trace"
    if found is not None:
        raise ArgumentError(
            called,
            found=found,
            rule="an exported program depends only on its arguments and on existing variables",
            remedy="call the function once before exporting it, outside strategy.run and other transforms",
        )
