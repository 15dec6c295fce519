"""`merge_call`: runs a user's function once, on the arguments of all replicas.

Arrays are the payload of the merge, so that tapes record them. All other objects are side inputs and side results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.merging import Merge, ReplicaRunner, run_merge
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues

if TYPE_CHECKING:
    from mirrored.strategies.context import ReplicaContext


class _Slot:
    """A placeholder for an array among the leaves of the side inputs and side results."""


_SLOT = _Slot()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and not isinstance(leaf, DistributedValues)


def call_merged(context: ReplicaContext, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Runs ``merge_fn(strategy, *args, **kwargs)`` once for all replicas and returns this replica's result."""
    runner = ambient().runner
    if runner is None:
        with within(replica=None):
            return merge_fn(context.strategy, *args, **kwargs)
    leaves, treedef = structures.flatten((args, kwargs))
    arrays = [leaf for leaf in leaves if _is_array(leaf)]
    runner.side_inputs[context.local_index] = ([_SLOT if _is_array(leaf) else leaf for leaf in leaves], treedef)

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        with within(replica=None):
            merged_args, merged_kwargs = _regrouped(runner, payloads)
            result = merge_fn(context.strategy, *merged_args, **merged_kwargs)
        return _merge_results(runner, result, len(payloads))

    name = f"ReplicaContext.merge_call({getattr(merge_fn, '__name__', 'merge_fn')})"
    result_arrays = iter(run_merge(Merge(name, run), arrays))
    flat, out_treedef = runner.side_results[context.local_index]
    return structures.unflatten(out_treedef, [next(result_arrays) if leaf is _SLOT else leaf for leaf in flat])


def _regrouped(runner: ReplicaRunner, payloads: Sequence[Any]) -> Any:
    """Returns the arguments of the merge function, given the payloads and side inputs of all replicas."""
    parts = []
    for local, payload in enumerate(payloads):
        leaves, treedef = runner.side_inputs.pop(local)
        arrays = iter(payload)
        parts.append(structures.unflatten(treedef, [next(arrays) if leaf is _SLOT else leaf for leaf in leaves]))
    return structures.regroup(parts, "ReplicaContext.merge_call", runner.group, is_shared=runner.is_shared)


def _merge_results(runner: ReplicaRunner, result: Any, count: int) -> list[list[Any]]:
    """Returns the arrays of each replica's result, and stores its other leaves as side results."""
    flat, treedef = structures.flatten(result)
    arrays: list[list[Any]] = []
    runner.side_results = {}
    columns = [runner.components_each(leaf) for leaf in flat]
    for local in range(count):
        own = [column[local] for column in columns]
        arrays.append([leaf for leaf in own if _is_array(leaf)])
        runner.side_results[local] = ([_SLOT if _is_array(leaf) else leaf for leaf in own], treedef)
    return arrays
