"""The replica context: replica ids, collectives and `merge_call` for code inside `Strategy.run`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp

from mirrored._jax.traces import is_eval, trace_below_tapes
from mirrored._jax.trees import Structure
from mirrored._typing import PyTree
from mirrored.collectives.algorithm import reduced_single_replica
from mirrored.collectives.reduce_op import (
    CallableReduction,
    ReduceOp,
    as_reduce_op,
    check_alike,
    check_dtype,
    check_dtypes,
)
from mirrored.errors import ArgumentError, ContextError, StructureError
from mirrored.runtime.ambient import Ambient, ambient, thread
from mirrored.runtime.function_key import key_of
from mirrored.runtime.merge import Given, Merge, run_merge
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.strategies.argument_checks import as_arguments, as_axis, as_operand, check_gathered
from mirrored.strategies.merge_call import call_merged, enclosed_by, nested_gather, nested_reduce
from mirrored.strategies.reducing import check_sums_rows, mean_of_rows, refuse_rows
from mirrored.values import structures
from mirrored.values.sparse_rows import SparseRows

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy

_ALL_REDUCE: Final = "ReplicaContext.all_reduce"


class _Opened(threading.local):
    """The replica contexts that this thread has entered as ``with`` blocks; a context can be entered repeatedly."""

    def __init__(self) -> None:
        self.blocks: tuple[Ambient, ...] = ()  # the contexts to return to


_opened = _Opened()


class ReplicaContext:
    """The interface through which code inside `Strategy.run` sees its replica and communicates with other replicas.

    `get_replica_context()` returns it inside `run`, and, with one replica, outside any strategy.

    Attributes:
        local_index: The index of this replica among the local replicas of the runner.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4)
        >>> def replica():
        ...     context = mr.get_replica_context()
        ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1.0)
        >>> [float(x) for x in strategy.experimental_local_results(strategy.run(replica))]
        [10.0, 10.0, 10.0, 10.0]

    TensorFlow: `tf.distribute.ReplicaContext`.
    """

    def __init__(
        self, strategy: Strategy, replica_id: int | jax.Array | Callable[[], jax.Array], local_index: int = 0
    ) -> None:
        self._strategy = strategy
        self._replica_id = replica_id
        self.local_index = local_index

    @property
    def strategy(self) -> Strategy:
        """The strategy whose `run` executes this replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """The total number of replicas that run in parallel."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The index of this replica among all replicas: an int in eager mode, a traced ``int32[]`` in compiled code.

        In compiled code one program serves several replicas, so a Python ``if`` cannot use the index. Use `jnp.where`
        or `jax.lax.cond`, or run eagerly.
        """
        runner = ambient().runner
        if runner is not None:
            runner.separate_traces(self.local_index)
        return self._replica_id() if callable(self._replica_id) else self._replica_id

    @property
    def devices(self) -> tuple[str, ...]:
        """A tuple of one element: the name of this replica's device, in TensorFlow's format.

        In compiled code, it is the name of the first device.
        """
        device_assignment = self._strategy.device_assignment
        if device_assignment is None:
            device = jax.devices()[0]
            return (f"/job:localhost/replica:0/task:0/device:{device.platform.upper()}:{device.id}",)
        replica = self._replica_id if isinstance(self._replica_id, int) else self.local_index
        return (device_assignment.name_of(replica),)

    def merge_call(self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Waits for the other replicas, then calls ``merge_fn(strategy, *args, **kwargs)`` once for all of them.

        `merge_fn` runs under the first replica's settings of `jax.enable_x64`, `jax.default_matmul_precision` and
        `jax.numpy_dtype_promotion`, also if a ``with`` block around the call has set them.

        Context: replica context.

        Args:
            merge_fn: Receives the strategy and the merged arguments. A merged argument is a per-replica value of what
                the replicas passed, or the object itself if all replicas passed the same object. Numbers, strings,
                arrays and functions that it closes over must be equal on all replicas, and the numbers and strings in
                frozen dataclasses and in the object of a bound method. Other objects are not compared: those of the
                first replica are used.
            args: Positional arguments: structures of arrays and of any other objects.
            kwargs: Keyword arguments.

        Returns:
            The result of `merge_fn`, with this replica's component of each per-replica value.

        Raises:
            MergeError: Not all replicas call it, the call is under a JAX transform, or `merge_fn` closes over numbers,
                strings, arrays or functions that differ between replicas.
            TapeError: Gradients would be lost, because they flow only to `args` and `kwargs`: `merge_fn` closes over an
                array that a tape tracks, or returns what it computes from a variable, under a tape of the replica.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> def replica():
            ...     context = mr.get_replica_context()
            ...     own = context.replica_id_in_sync_group + 1.0
            ...     return context.merge_call(lambda strategy, x: strategy.reduce("SUM", x, axis=None), args=(own,))
            >>> [float(x) for x in strategy.experimental_local_results(strategy.run(replica))]
            [3.0]

        TensorFlow: calls the function of the first replica with whatever it closes over, and records nothing on tapes.
        """
        self._check("ReplicaContext.merge_call")
        args = as_arguments("ReplicaContext.merge_call", args, "merge_call(merge_fn, args=(x,))")
        return call_merged(self, merge_fn, args, dict(kwargs or {}))

    def all_reduce(self, reduce_op: ReduceOp | str, value: PyTree, options: object = None) -> Any:
        """Reduces the values of all replicas to one, and returns the result on every replica.

        Context: replica context, eager or compiled.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, their names in any case, or a custom reduction.
            value: An array or a structure of arrays (one collective for all of them), equal in shape on all replicas.
                If this replica has None where others have an array (a gradient that it lacks), it contributes zeros.
            options: Accepted for compatibility with TensorFlow and ignored.

        Returns:
            The same structure. The gradient of a sum or mean is the `all_reduce` of the upstream gradient by the same
            operation; that of another reduction is the derivative of the reduction, for the sum of upstream gradients.

        Raises:
            ArgumentError: `reduce_op` is not a valid reduction, or booleans or typed PRNG keys are to be summed or
                averaged.
            MergeError: Not all replicas call it.

        TensorFlow: `tf.distribute.ReplicaContext.all_reduce`. Custom reductions are an extension.
        """
        return all_reduce_for(_ALL_REDUCE, self, reduce_op, value)

    def all_gather(self, value: PyTree, axis: int, options: object = None) -> Any:
        """Concatenates the values of all replicas along `axis`, and returns the result on every replica.

        Context: replica context, eager or compiled. In eager mode the sizes along `axis` may differ.

        Args:
            value: An array with at least one dimension, or a structure of such arrays. None, on all replicas, is kept.
            axis: The dimension; may be negative.
            options: Accepted for compatibility with TensorFlow and ignored.

        Raises:
            ArgumentError: A value is a scalar, or the axis is out of range.
            StructureError: The replicas pass values of different structures or dtypes.

        TensorFlow: `tf.distribute.ReplicaContext.all_gather`.
        """
        self._check("ReplicaContext.all_gather")
        axis = as_axis("ReplicaContext.all_gather", axis)
        leaves, treedef = structures.flatten(value, also=SparseRows)
        for leaf in leaves:
            refuse_rows("ReplicaContext.all_gather", leaf)
        arrays = [as_operand("ReplicaContext.all_gather", leaf) for leaf in leaves if leaf is not None]
        for array in arrays:
            check_axis("ReplicaContext.all_gather", array, axis)
        runner = ambient().runner
        if runner is None or runner.device_assignment.num_replicas == 1:
            return _with_none(leaves, treedef, arrays)

        def run(payloads: Sequence[Any]) -> Sequence[Any]:
            check_others("ReplicaContext.all_gather", payloads, axis)
            results = runner.gather_each([list(locals_) for locals_ in zip(*payloads, strict=True)], axis)
            return [[parts[k] for parts in results] for k in range(len(payloads))]

        replicas = runner.device_assignment.num_replicas
        structure = Given(treedef, "the structure", treedef, StructureError)
        nones = [place for place, leaf in enumerate(leaves) if leaf is None]
        missing = Given(nones, "the leaves that are None", nones, StructureError)
        merge = Merge(
            "ReplicaContext.all_gather",
            run,
            lambda local, parts: nested_gather(parts, axis, local, replicas, "ReplicaContext.all_gather"),
            calls_user_code=False,
            given=(Given(axis, "axis", axis), structure, missing),
        )
        return _with_none(leaves, treedef, run_merge(merge, arrays))

    def _check(self, called: str) -> None:
        """Raises ContextError if this context is used outside of its replica; `called` is the method in the message."""
        here, runner = ambient().replica, ambient().runner
        if here is self and runner is not None:
            return
        if here is not None and here is not self and here.strategy is not self._strategy:
            raise ContextError(
                called,
                found="this is the context of another strategy's replica",
                rule="a replica context can be used only by the replica that obtained it",
                remedy="call get_replica_context() in the function that uses it",
            )
        several = self._strategy.num_replicas_in_sync > 1
        if (here is None and self._strategy.device_assignment is not None) or (several and runner is None):
            raise ContextError(
                called,
                found="it was called outside its run",
                rule="collectives and merge_call can be called only while all replicas run",
                remedy="call get_replica_context() inside the function given to strategy.run; if a derivative rule "
                "calls it, open the tape in that function, too",
            )

    def __enter__(self) -> ReplicaContext:
        before = thread.current
        inside = before.fork(replica=self, strategies=(*before.strategies, self._strategy))
        _opened.blocks, thread.current = (*_opened.blocks, before), inside  # no interrupt comes between two assignments
        return self

    def __exit__(self, *exception: object) -> None:
        *outer, before = _opened.blocks
        thread.current, _opened.blocks = before, (*outer,)

    def __repr__(self) -> str:
        replica = self._replica_id if isinstance(self._replica_id, int) else "traced"
        return f"ReplicaContext(replica {replica} of {self.num_replicas_in_sync})"


def all_reduce_for(called: str, context: ReplicaContext, reduce_op: ReduceOp | str, value: PyTree) -> Any:
    """Implements `ReplicaContext.all_reduce` for several public functions; `called` is the name shown in errors.

    Args:
        called: What the user called, for messages: ``"average_loss"``.
        context: The replica context.
        reduce_op: As in `all_reduce`.
        value: As in `all_reduce`.
    """
    context._check(called)
    op = as_reduce_op(reduce_op)
    leaves, treedef = structures.flatten(value, also=SparseRows)
    arrays = [as_operand(called, leaf) for leaf in leaves if leaf is not None and not isinstance(leaf, SparseRows)]
    for array in arrays:
        check_dtype(called, op, array.dtype)
    runner = ambient().runner
    if runner is None or runner.device_assignment.num_replicas == 1:
        reduced, given = [reduced_single_replica(op, array) for array in arrays], [leaf is not None for leaf in leaves]
    elif not leaves:
        reduced, given = [], []
    else:
        mask = [None if isinstance(leaf, SparseRows) else leaf is not None for leaf in leaves]
        *reduced, given = run_merge(_all_reduction(called, runner, op, treedef), [*arrays, mask])
    remaining = iter(reduced)
    results = [
        _all_rows(called, context, op, leaf) if isinstance(leaf, SparseRows) else next(remaining) if here else None
        for leaf, here in zip(leaves, given, strict=True)
    ]
    return treedef.unflatten(results)


def _all_rows(called: str, context: ReplicaContext, op: ReduceOp, rows: SparseRows) -> SparseRows:
    """Returns the sparse rows of all replicas, concatenated; for a mean, divided by the number of replicas."""
    check_sums_rows(called, rows, op)
    values, indices = context.all_gather([rows.values, rows.indices], 0)
    return type(rows)(mean_of_rows(op, values, context.num_replicas_in_sync), indices, rows.dense_shape)


def _all_reduction(called: str, runner: ReplicaRunner, op: ReduceOp, treedef: Structure) -> Merge:
    """Returns the `Merge` object that executes an all-reduce once for all local replicas of a run.

    A replica's payload is its arrays, then the mask that `_columns` describes. Its result is the reduced arrays, then
    for each leaf whether any replica has it.
    """

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        columns = _columns(called, [payload[:-1] for payload in payloads], [payload[-1] for payload in payloads])
        for components in columns:
            if components is not None:
                check_alike(called, components)
        results = runner.all_reduce_given(op, columns)
        given = [parts is not None for parts in results]
        return [[*(parts[k] for parts in results if parts is not None), given] for k in range(len(payloads))]

    def nested(local: int, payload: list[Any]) -> list[Any]:
        # The merge runs later, when the body is fused. Each leaf is None on all replicas or on none; fusing checks it.
        *arrays, mask = payload
        return [*nested_reduce(op, arrays, local, replicas, called, tuple(mask)), [here is not False for here in mask]]

    replicas = runner.device_assignment.num_replicas
    structure = Given(treedef, "the structure", treedef, StructureError)
    if op is ReduceOp.SUM or op is ReduceOp.MEAN:
        given = (Given((op, None), "reduce_op", op.name), structure)
        return Merge(called, run, nested, calls_user_code=False, given=given)
    key = key_of(op.fn if isinstance(op, CallableReduction) else op)
    given = (Given((op.name, key), "reduce_op", op.name), structure)
    return Merge(called, run, nested, given=given, enclosed=enclosed_by(called, key))


def _columns(
    called: str, payloads: Sequence[Sequence[Any]], masks: Sequence[Sequence[bool | None]]
) -> list[list[Any] | None]:
    """Collects, for each leaf, the local replicas' arrays, with zeros in place of None; None if all arrays are None.

    Args:
        called: What the user called, for messages.
        payloads: Each replica's arrays.
        masks: For each leaf of each replica, whether it is an array. None marks sparse rows, which are gathered
            separately.
    """
    if len({len(mask) for mask in masks}) > 1:
        raise StructureError(
            called,
            found=f"the replicas passed structures with {', '.join(str(len(mask)) for mask in masks)} leaves",
            rule="all replicas must pass the same structure, with None for a value that a replica lacks",
            remedy="pass the same list of gradients on all replicas, with None for a missing gradient",
        )
    arrays = [iter(payload) for payload in payloads]
    columns: list[list[Any] | None] = []
    for leaf in zip(*masks, strict=True):
        components = [next(array) if here else None for array, here in zip(arrays, leaf, strict=True)]
        like = next((component for component in components if component is not None), None)
        if like is None:
            columns.append(None)
        else:
            columns.append([jnp.zeros(like.shape, like.dtype) if one is None else one for one in components])
    return columns


def _with_none(leaves: Sequence[Any], treedef: Structure, arrays: Iterable[Any]) -> Any:
    """Rebuilds a structure from the results for its arrays; its other leaves are None."""
    results = iter(arrays)
    return treedef.unflatten([None if leaf is None else next(results) for leaf in leaves])


def check_others(called: str, payloads: Sequence[Sequence[Any]], axis: int) -> None:
    """Raises ArgumentError if the arrays to be concatenated differ in rank or in a dimension other than `axis`.

    Raises:
        StructureError: They differ in dtype.
    """
    for arrays in zip(*payloads, strict=True):
        check_dtypes(called, arrays)
        shapes = [tuple(array.shape) for array in arrays]
        check_gathered(called, shapes, axis, "values")


def check_axis(called: str, array: jax.Array, axis: int) -> None:
    """Raises ArgumentError if `array` is a scalar or has no dimension `axis`."""
    if -array.ndim <= axis < array.ndim:
        return
    raise ArgumentError(
        called,
        found=f"axis={axis} for a value of shape {array.shape}",
        rule="axis must be a dimension of the value, along which values are concatenated; a scalar has none",
        remedy="pass a value of shape [1, ...] (value[None]) and an axis within its dimensions",
    )


def total_count(called: str, count: int | jax.Array, context: ReplicaContext) -> Any:
    """Returns the sum of `count` over all replicas.

    In a compiled run all per-replica batches have one shape. So a Python number is equal on all replicas, and the
    product replaces the all-reduce.
    """
    runner = ambient().runner
    compiled = runner is not None and not is_eval(trace_below_tapes(runner.base_trace))
    if compiled and isinstance(count, int):
        return count * context.num_replicas_in_sync
    local = jnp.asarray(count, jnp.result_type(float)) if isinstance(count, int) else count
    return all_reduce_for(called, context, ReduceOp.SUM, local)
