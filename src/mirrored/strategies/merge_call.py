"""`merge_call`: a user's function run once over what all replicas passed.

Arrays travel as the merge's payload, so that tapes record them; everything else goes beside it, as letters to the merge
and a reply from it.
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
    """Where an array belongs among leaves that are none."""


_SLOT = _Slot()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and not isinstance(leaf, DistributedValues)


def call_merged(context: ReplicaContext, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Runs ``merge_fn(strategy, *args, **kwargs)`` once for all replicas; this replica's part of the result."""
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
        return _answers(runner, result, len(payloads))

    name = f"ReplicaContext.merge_call({getattr(merge_fn, '__name__', 'merge_fn')})"
    answer = iter(run_merge(Merge(name, run), arrays))
    flat, out_treedef = runner.side_results[context.local_index]
    return structures.unflatten(out_treedef, [next(answer) if leaf is _SLOT else leaf for leaf in flat])


def _regrouped(runner: ReplicaRunner, payloads: Sequence[Any]) -> Any:
    """The arguments of the merge function, from what each replica passed."""
    parts = []
    for local, payload in enumerate(payloads):
        leaves, treedef = runner.side_inputs.pop(local)
        arrays = iter(payload)
        parts.append(structures.unflatten(treedef, [next(arrays) if leaf is _SLOT else leaf for leaf in leaves]))
    return structures.regroup(parts, "ReplicaContext.merge_call", runner.group, is_shared=runner.is_shared)


def _answers(runner: ReplicaRunner, result: Any, count: int) -> list[list[Any]]:
    flat, treedef = structures.flatten(result)
    answers: list[list[Any]] = []
    runner.side_results = {}
    for local in range(count):
        mine = [runner.component(leaf, local) for leaf in flat]
        answers.append([leaf for leaf in mine if _is_array(leaf)])
        runner.side_results[local] = ([_SLOT if _is_array(leaf) else leaf for leaf in mine], treedef)
    return answers
