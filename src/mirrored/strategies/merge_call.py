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
from mirrored.runtime.merging import Merge, Session, meet
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
    session = ambient().runner
    if session is None:
        with within(replica=None):
            return merge_fn(context.strategy, *args, **kwargs)
    leaves, treedef = structures.flatten((args, kwargs))
    arrays = [leaf for leaf in leaves if _is_array(leaf)]
    session.letters[context.local_index] = ([_SLOT if _is_array(leaf) else leaf for leaf in leaves], treedef)

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        with within(replica=None):
            merged_args, merged_kwargs = _regrouped(session, payloads)
            result = merge_fn(context.strategy, *merged_args, **merged_kwargs)
        return _answers(session, result, len(payloads))

    name = f"ReplicaContext.merge_call({getattr(merge_fn, '__name__', 'merge_fn')})"
    answer = iter(meet(Merge(name, run), arrays))
    flat, out_treedef = session.reply[context.local_index]
    return structures.unflatten(out_treedef, [next(answer) if leaf is _SLOT else leaf for leaf in flat])


def _regrouped(session: Session, payloads: Sequence[Any]) -> Any:
    """The arguments of the merge function, from what each replica passed."""
    parts = []
    for local, payload in enumerate(payloads):
        leaves, treedef = session.letters.pop(local)
        arrays = iter(payload)
        parts.append(structures.unflatten(treedef, [next(arrays) if leaf is _SLOT else leaf for leaf in leaves]))
    return structures.regroup(parts, "ReplicaContext.merge_call", session.group, is_shared=session.is_shared)


def _answers(session: Session, result: Any, count: int) -> list[list[Any]]:
    flat, treedef = structures.flatten(result)
    answers: list[list[Any]] = []
    session.reply = {}
    for local in range(count):
        mine = [session.component(leaf, local) for leaf in flat]
        answers.append([leaf for leaf in mine if _is_array(leaf)])
        session.reply[local] = ([_SLOT if _is_array(leaf) else leaf for leaf in mine], treedef)
    return answers
