"""Implements `Strategy.reduce` and `Strategy.gather`, which combine the replicas' values."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_types import keeping_width_of
from mirrored._jax.arrays import as_array, has_host_dtype, is_key_dtype, key_data
from mirrored._jax.boxes import is_live_box, payload_of
from mirrored._jax.traces import Tracer, eager
from mirrored._typing import Leaf
from mirrored.collectives.algorithm import reduced_single_replica
from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op, check_alike, check_dtype, check_dtypes
from mirrored.collectives.stacked import (
    check_components,
    concatenated,
    gather_padded,
    gather_stacked,
    on_all_devices,
    reduce_stacked,
)
from mirrored.collectives.summation import floating, narrow, sum_along, widen
from mirrored.errors import ArgumentError, NotSupportedError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.component_reads import component_of, existing_stack, is_stackable_in_trace, stacked_of
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.strategies.argument_checks import as_axis, as_operand, check_gathered
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values import structures
from mirrored.values.attributes import attribute
from mirrored.values.belonging import check_placement, none_or_complete
from mirrored.values.distributed_values import DistributedValues, LocalPerReplica, Mirrored, PerReplica
from mirrored.values.sparse_rows import SparseRows
from mirrored.values.stacking import stack_components

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


# Gathers over several processes: concatenates components whose sizes may differ.


def gather_across(components: Sequence[Any], axis: int, device_assignment: DeviceAssignment) -> Any:
    """Concatenates the arrays of all replicas in all processes along `axis`; their sizes along `axis` may differ.

    Args:
        components: The components of the replicas of this process, in replica order.
        axis: The dimension; may be negative.
        device_assignment: The devices of the replicas, on several processes.
    """
    return gather_with_sizes(components, axis, device_assignment)[0]


def gather_with_sizes(
    components: Sequence[Any], axis: int, device_assignment: DeviceAssignment
) -> tuple[Any, list[int]]:
    """Concatenates all replicas' arrays along `axis`, and also returns the size of every array along that axis.

    Raises:
        ArgumentError: On all workers: components of any worker cannot be concatenated along `axis`.
    """
    if any(isinstance(component, Tracer) or is_live_box(component) for component in components):
        return _gather_with_sizes(components, axis, device_assignment)
    with eager():  # also while a function is traced: the arrays of all workers are constants of its program
        return _gather_with_sizes(components, axis, device_assignment)


def _gather_with_sizes(
    components: Sequence[Any], axis: int, device_assignment: DeviceAssignment
) -> tuple[Any, list[int]]:
    arrays = [as_array(component) for component in components]
    shapes = [
        tuple(shape)
        for worker in host_allgather(
            "gather", f"gather {arrays[0].dtype} along axis {axis}", [array.shape for array in arrays]
        )
        for shape in worker
    ]
    check_gathered("Strategy.gather", shapes, axis, "components")
    axis %= arrays[0].ndim
    sizes = [shape[axis] for shape in shapes]
    most = max(sizes)
    # Of PRNG keys, which JAX neither pads nor moves to devices of other processes, the key data is gathered.
    padded = [_padded(key_data(array), axis, most) for array in arrays]
    gathered = gather_padded(stack_components(padded, device_assignment), axis, sizes, device_assignment)
    if is_key_dtype(arrays[0].dtype):
        gathered = jax.random.wrap_key_data(gathered, impl=jax.random.key_impl(arrays[0]))
    return gathered, sizes


def _padded(array: jax.Array, axis: int, size: int) -> Any:
    after = [(0, size - length if dim == axis else 0) for dim, length in enumerate(array.shape)]
    return jnp.pad(array, after)


_log = logging.getLogger("mirrored")


def reduce_structure(strategy: Strategy, reduce_op: Any, value: Any, axis: Any, called: str = "Strategy.reduce") -> Any:
    """Reduces each leaf of a pytree over replicas, with one collective for all per-replica leaves."""
    op = as_reduce_op(reduce_op)
    axes = _axes(called, axis)
    leaves, treedef = structures.flatten(value, also=SparseRows)
    if any(isinstance(leaf, SparseRows) for leaf in leaves):
        reduced_leaves = [_reduce_leaf(strategy, op, leaf, axis, called) for leaf in leaves]
        return treedef.unflatten(reduced_leaves)
    if axes is not None and op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ArgumentError(
            called,
            found=f"axis={axis!r} with the custom reduction {op.name}",
            rule="a custom reduction combines the replicas' components; only SUM and MEAN also reduce along dimensions",
            remedy="reduce each component inside run, then call reduce with axis=None",
        )
    prepared = [as_per_replica(strategy, leaf, called) for leaf in leaves]
    for leaf in prepared:
        _check_leaf(called, op if axes is None else ReduceOp.SUM, leaf)
    places = [i for i, leaf in enumerate(prepared) if isinstance(leaf, PerReplica)]
    reduced = iter(_reduce_all(strategy, called, op, [prepared[i] for i in places], axes))
    out = [
        next(reduced) if isinstance(leaf, PerReplica) else _reduce_plain(strategy, called, op, leaf, axes)
        for leaf in prepared
    ]
    return treedef.unflatten(out)


def _reduce_leaf(strategy: Strategy, op: ReduceOp, leaf: object, axis: int, called: str) -> Any:
    """Reduces one leaf of a pytree over replicas; for a `SparseRows` leaf, concatenates the replicas' rows."""
    if not isinstance(leaf, SparseRows):
        return reduce_structure(strategy, op, leaf, axis, called)
    check_sums_rows(called, leaf, op, axis)
    shape = leaf.dense_shape
    if isinstance(shape, DistributedValues):
        shape = shape.values[0]
    parts = [as_per_replica(strategy, part, called) for part in (leaf.values, leaf.indices)]
    if not any(isinstance(part, PerReplica) for part in parts):
        return type(leaf)(_reduce_plain(strategy, called, op, parts[0], None), as_array(parts[1]), shape)
    values, indices = (_rows_of_all(strategy, part) for part in parts)
    return type(leaf)(mean_of_rows(op, values, strategy.num_replicas_in_sync), indices, shape)


def _rows_of_all(strategy: Strategy, part: Leaf) -> Any:
    """Concatenates the replicas' values or indices of sparse rows; repeats an array that all replicas share."""
    if isinstance(part, PerReplica) or strategy.device_assignment is None:
        return gather_leaf(strategy, part, 0)
    repeated = jnp.concatenate([as_array(part)] * strategy.num_replicas_in_sync)
    return _in_merge(on_all_devices(repeated, strategy.device_assignment))


def mean_of_rows(op: ReduceOp, values: jax.Array, num_replicas: int) -> Any:
    """Divides the all-gathered rows of a sparse gradient by the number of replicas if the reduction `op` is MEAN."""
    return floating(values) / num_replicas if op is ReduceOp.MEAN else values


def check_sums_rows(called: str, rows: SparseRows, op: Any, axis: Any = None) -> None:
    """Raises an error unless sparse rows (`SparseRows`) are reduced by SUM or MEAN, without an axis.

    Raises:
        ArgumentError: The reduction is not SUM or MEAN, `axis` is given, or the rows are booleans or typed PRNG keys.
    """
    if op in (ReduceOp.SUM, ReduceOp.MEAN) and axis is None:
        _check_leaf(called, op, rows.values)
        return
    kind = type(rows).__name__
    raise ArgumentError(
        called,
        found=f"{kind} was passed with {op} and axis={axis!r}",
        rule=f"rows of {kind} are summed when they are applied, so only SUM and MEAN with axis=None can reduce them",
        remedy="convert them to a dense array first: slices.to_dense()",
    )


def _check_leaf(called: str, op: ReduceOp, leaf: object) -> None:
    """Raises an error if a reduction does not support the dtype of a leaf."""
    if isinstance(leaf, PerReplica):
        leaf = leaf.local[0] if isinstance(leaf, LocalPerReplica) else leaf.first()
    if leaf is None:
        return
    dtype = attribute(leaf, "dtype")
    is_known = dtype is not None and not has_host_dtype(leaf)
    check_dtype(called, op, dtype if is_known else as_operand(called, leaf).dtype)


def _is_mean_of_means(value: PerReplica) -> bool:
    """Returns whether a mean of `value` over replicas would weigh examples unequally, since batch sizes differed."""
    if not value.of_uneven_batch or any(isinstance(one, Tracer) for one in value.values):
        return False
    first, *others = (np.asarray(payload_of(one)) for one in value.values)
    return not all(np.array_equal(first, other) for other in others)


@functools.cache
def _warn_of_mean_of_means() -> None:
    _log.warning(
        "Strategy.reduce(MEAN, value, axis=None) of a step whose replicas had different numbers of examples: the mean "
        "of per-replica means is not the mean over the batch. Use losses.average_loss (or compute_average_loss) on the "
        "replicas and SUM here, or return one value per example and reduce with axis=0"
    )


def as_per_replica(strategy: Strategy, leaf: Leaf, called: str) -> Any:
    """Converts a value with one component per replica, such as a sync-on-read variable, to `PerReplica`.

    Raises:
        ValuesError: It has not one component for each replica of the strategy.
        StructureError: It is None on some replicas only. (It is None if it is None on all of them.)
    """
    if isinstance(leaf, PerReplica):
        check_placement(called, strategy, leaf, leaf.device_assignment)
        return none_or_complete(called, leaf)
    elif isinstance(leaf, Mirrored):
        return leaf.value
    elif isinstance(leaf, DistributedValues) and getattr(leaf, "per_replica", False):
        check_placement(called, strategy, leaf, leaf.device_assignment)  # type: ignore[attr-defined]
        return variable_components(strategy, leaf)
    return leaf


def variable_components(strategy: Strategy, variable: Any) -> PerReplica:
    """Returns a sync-on-read variable's values as a `PerReplica`, including those assigned so far in this `run`."""
    here = ambient()
    if here.runner is not None and here.store is not None:
        locals_ = [here.store.local(variable, k) for k in range(here.runner.num_local)]
        return here.runner.group(locals_)  # type: ignore[no-any-return]
    stacked = variable.stored() if here.store is None else here.store.whole(variable)
    return PerReplica.from_stacked(stacked, strategy.device_assignment)  # type: ignore[arg-type]


def _axes(called: str, axis: Any) -> tuple[int, ...] | None:
    if axis is None:
        return None
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    if all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in axes):
        return tuple(int(one) for one in axes)
    raise ArgumentError(
        called,
        found=f"axis={axis!r}",
        rule="axis must be None, an int, or several ints",
        remedy="pass axis=None or axis=0",
    )


def _reduce_plain(strategy: Strategy, called: str, op: ReduceOp, leaf: object, axes: tuple[int, ...] | None) -> Any:
    if leaf is None:
        return None
    array = as_array(leaf)
    if strategy.num_replicas_in_sync > 1 and op is not ReduceOp.MEAN:
        raise ArgumentError(
            called,
            found=f"{op} was requested for a value that is not per replica (shape {array.shape}) "
            f"on {strategy.num_replicas_in_sync} replicas",
            rule="only per-replica values can be summed over replicas",
            remedy="reduce what run returned; a value that is equal on all replicas is already reduced "
            "(MEAN returns it unchanged; multiply by num_replicas_in_sync for a sum). A replica function that returns "
            "a Python number to sum should return jnp.asarray(number), which is always per replica",
        )
    if axes is None:
        return reduced_single_replica(op, array)
    _check_axes(called, array.shape, axes)
    with keeping_width_of([array]):
        return jnp.mean(floating(array), axes) if op is ReduceOp.MEAN else sum_along(array, axes)


def _reduce_all(
    strategy: Strategy, called: str, op: ReduceOp, values: Sequence[PerReplica], axes: tuple[int, ...] | None
) -> list[Any]:
    if not values:
        return []
    if axes is None and op is ReduceOp.MEAN and any(_is_mean_of_means(value) for value in values):
        _warn_of_mean_of_means()
    if axes is None:
        return _reduce_components(strategy, op, values)
    with keeping_width_of(value.first() for value in values if not isinstance(value, LocalPerReplica)):
        return _reduce_along(strategy, called, op, values, axes)


def _reduce_along(
    strategy: Strategy, called: str, op: ReduceOp, values: Sequence[PerReplica], axes: tuple[int, ...]
) -> list[Any]:
    counts = [_map_components(value, lambda x: _count(called, x, axes)) for value in values]
    summed = [_map_components(value, lambda x: sum_along(_addends(x, op), axes)) for value in values]
    if op is not ReduceOp.MEAN:
        return _reduce_components(strategy, op, summed)
    totals = _reduce_components(strategy, ReduceOp.SUM, [*summed, *counts])
    sums, elements = totals[: len(values)], totals[len(values) :]
    means = [total / count.astype(total.dtype) for total, count in zip(sums, elements, strict=True)]
    return [narrow(mean, _mean_dtype(value)) for mean, value in zip(means, values, strict=True)]


def _map_components(value: PerReplica, function: Callable[..., Any]) -> PerReplica:
    if isinstance(value, LocalPerReplica):
        runner = ambient().runner
        assert runner is not None
        return runner.group([function(component) for component in value.local])  # type: ignore[no-any-return]
    if value.is_stacked:
        assert value.device_assignment is not None
        return PerReplica.from_stacked(
            jax.vmap(function)(value.stacked(value.device_assignment)), value.device_assignment
        )
    return PerReplica.of_components(
        [_on_its_device(function, component) for component in value.values], value.device_assignment
    )


def _on_its_device(function: Callable[..., Any], component: Any) -> Any:
    """Applies `function` to the array `component`, with the array's device as JAX's default device."""
    if not isinstance(component, jax.Array) or isinstance(component, Tracer) or len(component.sharding.device_set) > 1:
        return function(component)
    with jax.default_device(next(iter(component.sharding.device_set))):
        return function(component)


def _reduce_components(strategy: Strategy, op: ReduceOp, values: Sequence[PerReplica]) -> list[Any]:
    device_assignment = strategy.device_assignment
    if device_assignment is None or device_assignment.num_replicas == 1:
        return [reduced_single_replica(op, as_array(component_of(value, 0))) for value in values]
    runner = ambient().runner
    if runner is not None:
        for value in values:
            if not value.is_stacked and not isinstance(value, LocalPerReplica):
                check_alike("Strategy.reduce", value.values)
        return [_in_merge(one) for one in runner.reduce(op, [_locals(runner, value) for value in values])]
    check_components("Strategy.reduce", values, device_assignment)
    store = ambient().store
    if store is not None:
        store.note_reduction(bit_identical=strategy.cross_device_ops.requires_bit_identity)
    return reduce_stacked(
        strategy.cross_device_ops,
        op,
        [stacked_of(value, device_assignment) for value in values],
        device_assignment,
    )


def _in_merge(array: jax.Array) -> Any:
    """Moves a result to the first device if a tape differentiates the `merge_call` around it, as reads are there."""
    store = ambient().store
    return array if store is None else store.on_device_of_merge(array)


def _locals(runner: ReplicaRunner, value: PerReplica) -> list[Any]:
    return [runner.component(value, k) for k in range(runner.num_local)]


def _check_axes(called: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    for axis in axes:
        if not -len(shape) <= axis < len(shape):
            raise ArgumentError(
                called,
                found=f"axis={axis} for components of shape {shape}",
                rule="axis must be a dimension of every component",
                remedy=f"pass an axis from {-len(shape)} to {len(shape) - 1}, or axis=None to combine the components "
                "element by element"
                if shape
                else "pass axis=None to combine the scalars of the replicas",
            )
    if len({axis % len(shape) for axis in axes}) < len(axes):
        raise ArgumentError(
            called,
            found=f"axis={axes} names a dimension of components of shape {shape} twice",
            rule="every dimension can be combined once",
            remedy="name every dimension once",
        )


def _count(called: str, component: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Returns how many elements a reduction along `axes` combines into one, as a float with the mean's precision."""
    shape = np.shape(component)
    _check_axes(called, shape, axes)
    count = int(np.prod([shape[axis] for axis in axes], dtype=np.int64))
    is_double = as_array(component).dtype in (jnp.float64, jnp.complex128)
    return jnp.asarray(count, jnp.float64 if is_double else jnp.float32)


def _addends(component: jax.Array, op: ReduceOp) -> Any:
    """Prepares one replica's value for addition: for a mean, converts integers and 16-bit floats to float32."""
    array = as_array(component)
    return widen(floating(array)) if op is ReduceOp.MEAN else array


def _mean_dtype(value: PerReplica) -> Any:
    component = value.local[0] if isinstance(value, LocalPerReplica) else value.values[0]
    dtype = as_array(component).dtype
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.dtype(jnp.float32)


def gather_structure(strategy: Strategy, value: object, axis: int) -> Any:
    """Concatenates the replicas' values of each leaf of a pytree."""
    axis = as_axis("Strategy.gather", axis)
    leaves, treedef = structures.flatten(value, also=SparseRows)
    for leaf in leaves:
        refuse_rows("Strategy.gather", leaf)
    gathered = treedef.unflatten([gather_leaf(strategy, leaf, axis) for leaf in leaves])
    return gathered


def refuse_rows(called: str, leaf: object) -> None:
    """Raises an error if sparse rows (`SparseRows`) are passed to `gather`, which does not support them.

    Raises:
        NotSupportedError: `leaf` is a `SparseRows`.
    """
    if isinstance(leaf, SparseRows):
        method, kind = called.rpartition(".")[2], type(leaf).__name__
        raise NotSupportedError(
            called,
            found=f"{method} does not support {kind}",
            rule=f"the rows of {kind} have indices, so they cannot be concatenated along a dimension",
            remedy=f"pass slices.to_dense(), or call {method} on slices.values and on slices.indices",
        )


def gather_leaf(strategy: Strategy, leaf: object, axis: int) -> Any:
    """Concatenates the replicas' values of one pytree leaf along `axis`, in replica order.

    Raises:
        ArgumentError: The components cannot be concatenated along `axis`.
        StructureError: The components have different dtypes.
    """
    value = as_per_replica(strategy, leaf, "Strategy.gather")
    if not isinstance(value, PerReplica):
        return value if value is None else as_operand("Strategy.gather", value)
    runner, is_traced = ambient().runner, is_stackable_in_trace(value)
    if runner is not None and (isinstance(value, LocalPerReplica) or is_traced):
        first = value.local[0] if isinstance(value, LocalPerReplica) else value.values[0]
        check_gathered("Strategy.gather", [first.shape], axis, "components")
        return _in_merge(runner.gather([_locals(runner, value)], axis)[0])
    layout = strategy.device_assignment
    stacked = None
    if layout is not None and (value.is_stacked or not layout.spans_processes):
        stacked = stacked_of(value, layout) if is_traced else existing_stack(value)
    if stacked is not None and layout is not None:
        check_gathered("Strategy.gather", [stacked.shape[1:]], axis, "components")
        return _in_merge(gather_stacked(stacked, axis % (stacked.ndim - 1), layout))
    components = [as_operand("Strategy.gather", component) for component in value.values]
    check_dtypes("Strategy.gather", components)
    if layout is not None and layout.spans_processes:
        return gather_across(components, axis, layout)
    check_gathered("Strategy.gather", [component.shape for component in components], axis, "components")
    if layout is not None and len(layout.devices) > 1:
        near = [jax.device_put(component, layout.devices[0]) for component in components]
        return _in_merge(on_all_devices(concatenated(near, axis), layout))
    return concatenated(components, axis)
