"""Merges: where the local replicas of a run meet.

`meet` is the only way from replica context to cross-replica context. Each local replica brings a payload; when all have
arrived, the merge runs once over all payloads and gives each its result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from mirrored._jax.traces import current_trace
from mirrored.errors import MergeError
from mirrored.replicas.ambient import ambient


@dataclasses.dataclass(frozen=True)
class Merge:
    """An operation over all local replicas at once.

    Attributes:
        name: What the user called, for messages: ``"ReplicaContext.all_reduce"``.
        run: From one payload per local replica to one result per local replica. Called once, in cross-replica context.
            Array payloads are flat lists of arrays, so that a tape can unwrap and record them.
    """

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]


@runtime_checkable
class RecordsMerges(Protocol):
    """A JAX trace, opened inside a replica, that takes part in merges (the tape's)."""

    def process_merge(self, merge: Merge, payload: list[Any]) -> list[Any]:
        """Meets with the payload unwrapped, records the merge, returns the results wrapped."""
        ...


class Runner(Protocol):
    """What runs the local replicas of one `run` in lock-step."""

    @property
    def base_trace(self) -> Any:
        """The JAX trace that was current when the replicas started."""
        ...

    def meet(self, merge: Merge, payload: Any) -> Any:
        """Blocks this replica until all have arrived and the merge has run."""
        ...


def meet(merge: Merge, payload: list[Any]) -> list[Any]:
    """Meets the other local replicas at `merge` and returns this replica's result.

    Context: replica context. With one local replica (no runner) the merge runs in place, so that surrounding tapes see
    its operations as ordinary ones.

    Raises:
        MergeError: The call sits under a JAX transform (`jit`, `scan`, `cond`, `vmap`, ...) inside the replica function,
            where replicas of one process cannot meet.
    """
    runner = ambient().runner
    if runner is None:
        return list(merge.run([payload])[0])
    trace = current_trace()
    if trace is runner.base_trace:
        return list(runner.meet(merge, payload))
    if isinstance(trace, RecordsMerges):
        return trace.process_merge(merge, payload)
    raise MergeError(
        merge.name,
        found=f"it was called under a JAX transform inside the replica function ({type(trace).__name__})",
        rule="replicas that share a process meet only in the replica function itself or under a GradientTape",
        remedy="call it outside the jit/scan/cond/vmap, on the value that the transform returns",
    )
