"""The replica context: what code inside `run` knows of the other replicas, and how it meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op
from mirrored.errors import ArgumentError, ContextError
from mirrored.replicas import structures
from mirrored.replicas.ambient import ambient, within
from mirrored.replicas.indexed_slices import IndexedSlices
from mirrored.replicas.merging import Merge, Session, meet
from mirrored.strategies.merge_call import call_merged
from mirrored.strategies.reducing import check_alike, check_sums_rows, refuse_rows

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


class ReplicaContext:
    """Given by `get_replica_context()` inside `Strategy.run`; also in force outside any strategy, with one replica.

    Attributes:
        local_index: Which of the session's replicas this is.

    TensorFlow: `tf.distribute.ReplicaContext`.
    """

    def __init__(self, strategy: Strategy, replica_id: Any, local_index: int = 0) -> None:
        self._strategy = strategy
        self._replica_id = replica_id
        self.local_index = local_index

    @property
    def strategy(self) -> Strategy:
        """The strategy that runs this replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> Any:
        """Which replica this is, from 0: an int in eager mode, a traced ``int32[]`` in compiled code.

        In compiled code one program stands for several replicas, so a Python ``if`` cannot look at it: use `jnp.where`,
        `jax.lax.cond`, or run eagerly.
        """
        return self._replica_id() if callable(self._replica_id) else self._replica_id

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this replica, as TensorFlow writes it (eager mode; the first one's in compiled code)."""
        layout = self._strategy.layout
        if layout is None:
            device = jax.devices()[0]
            return (f"/job:localhost/replica:0/task:0/device:{device.platform.upper()}:{device.id}",)
        replica = self._replica_id if isinstance(self._replica_id, int) else self.local_index
        return (layout.name_of(replica),)

    def merge_call(self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Meets the other replicas: ``merge_fn(strategy, *args, **kwargs)`` runs once, in cross-replica context.

        Context: replica context.

        Args:
            merge_fn: Gets the strategy and, for each argument, what the replicas passed: a per-replica value, or the
                object itself where all passed the very same.
            args: Positional arguments, structures of arrays and anything else.
            kwargs: Keyword arguments.

        Returns:
            What `merge_fn` returns; of per-replica values, this replica's component.

        Raises:
            MergeError: Not all replicas call it, or the call sits under a JAX transform.
        """
        self._check("merge_call")
        return call_merged(self, merge_fn, tuple(args), dict(kwargs or {}))

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduces `value` over all replicas; every replica gets the result.

        Context: replica context, eager or compiled.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, their names in any case, or a custom reduction.
            value: An array or a structure of arrays (one collective for all of them), equal in shape on all replicas.
            options: Accepted for TensorFlow's sake.

        Returns:
            The same structure. Its gradient is the `all_reduce` of the upstream gradient by the same operation.

        Raises:
            ArgumentError: `reduce_op` is none.
            MergeError: Not all replicas call it.
        """
        self._check("all_reduce")
        op = as_reduce_op(reduce_op)
        leaves, treedef = structures.flatten(value, also=IndexedSlices)
        arrays = [jnp.asarray(leaf) for leaf in leaves if leaf is not None and not isinstance(leaf, IndexedSlices)]
        session = ambient().runner
        if not arrays or session is None or session.layout.num_replicas == 1:
            reduced = iter(arrays)
        else:
            reduced = iter(meet(_all_reduction(session, op), arrays))
        results = [
            leaf if leaf is None else self._all_rows(op, leaf) if isinstance(leaf, IndexedSlices) else next(reduced)
            for leaf in leaves
        ]
        return structures.unflatten(treedef, results)

    def _all_rows(self, op: Any, rows: IndexedSlices) -> IndexedSlices:
        """The rows of all replicas, one after the other; each counts a share of itself in a mean."""
        check_sums_rows("ReplicaContext.all_reduce", op)
        values, indices = self.all_gather([rows.values, rows.indices], 0)
        return IndexedSlices(
            values / self.num_replicas_in_sync if op is ReduceOp.MEAN else values, indices, rows.dense_shape
        )

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenates `value` of all replicas along `axis`; every replica gets the result.

        Context: replica context, eager or compiled. In eager mode the sizes along `axis` may differ.

        Args:
            value: An array of at least one dimension, or a structure of such.
            axis: Which dimension; may be negative.
            options: Accepted for TensorFlow's sake.

        Raises:
            ArgumentError: A scalar, or an axis out of range.
        """
        self._check("all_gather")
        leaves, treedef = structures.flatten(value, also=IndexedSlices)
        for leaf in leaves:
            refuse_rows("ReplicaContext.all_gather", leaf)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        for array in arrays:
            check_axis("ReplicaContext.all_gather", array, axis)
        session = ambient().runner
        if session is None or session.layout.num_replicas == 1:
            return structures.unflatten(treedef, arrays)

        def run(payloads: Sequence[Any]) -> Sequence[Any]:
            check_others("ReplicaContext.all_gather", payloads, axis)
            whole = session.gather([list(locals_) for locals_ in zip(*payloads, strict=True)], axis)
            return [[session.reduced_component(array, k) for array in whole] for k in range(len(payloads))]

        return structures.unflatten(treedef, meet(Merge("ReplicaContext.all_gather", run), arrays))

    def _check(self, called: str) -> None:
        here = ambient().replica
        several = self._strategy.num_replicas_in_sync > 1
        if here is not None and here is not self and here.strategy is not self._strategy:
            raise ContextError(
                f"ReplicaContext.{called}",
                found="the context of another strategy's replica",
                rule="a replica context is used by the replica that it was given to",
                remedy="call get_replica_context() where you are",
            )
        if (here is None and self._strategy.layout is not None) or (several and ambient().runner is None):
            raise ContextError(
                f"ReplicaContext.{called}",
                found="it was called outside its run",
                rule="replicas meet while they run",
                remedy="call get_replica_context() inside the function given to strategy.run",
            )

    def __enter__(self) -> ReplicaContext:
        self._entered = within(replica=self, strategies=(*ambient().strategies, self._strategy))
        self._entered.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.__exit__(*exception)

    def __repr__(self) -> str:
        replica = self._replica_id if isinstance(self._replica_id, int) else "traced"
        return f"ReplicaContext(replica {replica} of {self.num_replicas_in_sync})"


def _all_reduction(session: Session, op: Any) -> Merge:
    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        for components in zip(*payloads, strict=True):
            check_alike("ReplicaContext.all_reduce", components)
        results = session.all_reduce(op, [list(locals_) for locals_ in zip(*payloads, strict=True)])
        return [[parts[k] for parts in results] for k in range(len(payloads))]

    return Merge("ReplicaContext.all_reduce", run)


def check_others(called: str, payloads: Sequence[Sequence[Any]], axis: int) -> None:
    """Refuses to concatenate arrays that differ in another dimension, or in their number of dimensions."""
    for arrays in zip(*payloads, strict=True):
        shapes = [tuple(array.shape) for array in arrays]
        rest = {shape[: axis % len(shape)] + shape[axis % len(shape) + 1 :] for shape in shapes}
        if len(rest) > 1 or len({len(shape) for shape in shapes}) > 1:
            raise ArgumentError(
                called,
                found=f"axis={axis} for values of shapes {', '.join(map(str, shapes))}",
                rule="replicas' values agree in all dimensions but the gathered one",
                remedy="pad the values that differ in other dimensions",
            )


def check_axis(called: str, array: Any, axis: int) -> None:
    """Refuses to gather scalars, or along a dimension that is not there."""
    if -array.ndim <= axis < array.ndim:
        return
    raise ArgumentError(
        called,
        found=f"axis={axis} for a value of shape {array.shape}",
        rule="values are concatenated along one of their dimensions; a scalar has none",
        remedy="give a value of shape [1, ...] (value[None]) and an axis within its dimensions",
    )
