"""`OrderedTree`: sums over replicas in an order that does not depend on the number of devices."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.jaxprs import equal_on_all_devices
from mirrored._jax.linear import linear
from mirrored.collectives.algorithm import SMALL_BYTES, CrossDeviceOps, over_small_buckets, unpack_buckets
from mirrored.collectives.partial_sums import PartialSums, Pattern, partial_sums
from mirrored.collectives.summation import (
    Group,
    isolate,
    isolate_lists,
    narrow,
    not_constant,
    stack_isolated,
    widen,
    with_positive_zeros,
)


@dataclasses.dataclass(frozen=True)
class OrderedTree(CrossDeviceOps):
    """A deterministic reduction algorithm that adds the replicas' values by the same tree on any number of devices.

    The tree is balanced, over replica indices, with pairs of neighbours first. It does not depend on the number of
    devices, so the sum is bit-identical on any number of them. Devices hold blocks of consecutive replicas. Each device
    computes the lower levels of the tree for its own replicas, behind a fusion boundary (`collectives.summation`). The
    upper levels are all-reduces between pairs of devices. Each adds two values, which gives the same bits in either
    order. An all-reduce of XLA for CPU begins with 0.0, so it never returns -0.0; sums that are zero are therefore 0.0
    everywhere. On D devices these are log2(D) exchanges of the whole arrays. On simulated devices the exchange alone
    takes 1.25 to 5 times as long as one all-reduce, and a whole step 0.95 to 1.14 times as long (`benchmarks/reports`,
    2026-11-21).

    The exchange in pairs needs one complete subtree on each device, and a complete tree over the devices: the number of
    devices must be a power of two that divides the number of replicas into equal subtrees. Otherwise each device first
    computes the nodes of the tree whose replicas are all its own (`collectives.partial_sums`): of 8 replicas on 3
    devices it has at most two. Then an all-to-all gives each device the same slice of every device's partial sums. It
    computes the remaining levels for this slice, and an all-gather returns all slices to all devices.

    Floats of at most 16 bits are summed in float32 and rounded once.

    The gradient is a sum by the same tree, for a tape around a compiled run by `strategies.fixed_order_runs`. A
    reduction function of the user gets the same stack of components on any number of devices (`stack_each`), but its
    gradient is not bit-identical: JAX first adds the cotangents of a device's replicas, in its own order, and only then
    does the tree sum them over devices.

    For equal bits the bodies of runs and merges must be behind boundaries, too (`strategies.shard_map_call`,
    `ReplicaRunner.isolated`), replica ids must be an input, and XLA must compile the program without merging or
    reordering its operations (`mirrored._jax.bit_identical`).

    Source of the pairwise exchange: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
    operations in MPICH", Int. J. High Perf. Comp. Appl. 19 (2005), recursive doubling.

    Example:
        >>> import mirrored as mr
        >>> from mirrored.collectives import OrderedTree
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, cross_device_ops=OrderedTree())
        >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
        >>> float(strategy.reduce("SUM", ids, axis=None))
        10.0

    TensorFlow: no equivalent.
    """

    @property
    def requires_bit_identity(self) -> bool:
        """Always True, because some XLA optimizations would make results depend on the number of devices.

        For example, merging equal operations of a device's replicas (CSE) would change bits of results.
        """
        return True

    @property
    def ignores_empty_slots(self) -> bool:
        """Always True, because the sums leave out the padding arrays of devices with fewer replicas."""
        return True

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums arrays over replicas by a fixed binary tree, with equal bits on any number of devices."""
        if group.num_replicas == 1:
            return [list(components) for components in arrays]
        return _all_sum(group, [list(components) for components in arrays])

    def stack_each(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """All-gathers each array from all replicas, stacked along a new first axis.

        Returns a list per array, as in the base class. The stack is behind a fusion boundary. The backward pass sums
        cotangents by the tree.
        """
        return [_stack_each(group, list(components)) for components in arrays]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _stack_each(group: Group, components: list[Any]) -> list[Any]:
    [stacked] = stack_isolated([components])
    whole = stacked if group.axis is None else group.slots.rows(lax.all_gather(stacked, group.axis, axis=0, tiled=True))
    return [whole] * group.local


def _stack_each_forward(group: Group, components: list[Any]) -> tuple[list[Any], None]:
    return _stack_each(group, components), None


def _stack_each_backward(group: Group, _: None, cotangents: list[Any]) -> tuple[list[Any]]:
    """VJP rule of `_stack_each`: sums the cotangents of all replicas' copies; returns this device's rows of the sum.

    An empty slot repeats the row of the slot before, and passes no gradient to it when the rule is differentiated.
    """
    total = _sum_of_cotangents(group, cotangents)
    device = 0 if group.axis is None else lax.axis_index(group.axis)
    rows = [group.slots.replica_at(device, k) for k in range(group.local)]
    totals = zip(group.for_each_local(total), rows, strict=True)
    return ([lax.dynamic_index_in_dim(one, row, keepdims=False) for one, row in totals],)


def _sum_of_cotangents(group: Group, cotangents: list[Any]) -> Any:
    """Sums the cotangents of all replicas, in the order of a fixed binary tree.

    The group of a merged function has one replica per device.
    """
    if group.num_replicas == 1:
        return with_positive_zeros(cotangents[0])
    return _all_sum(group, [cotangents])[0][0]


_stack_each.defvjp(_stack_each_forward, _stack_each_backward)


def fan_out(group: Group, value: jax.Array) -> list[Any]:
    """Copies a replicated value once per replica slot of this device; sums the copies' gradients in a fixed order.

    The tree sums the cotangents of all replicas. Every device returns the whole sum, and the caller must take only one
    of them, as `one_row_each` does (`collectives.equal_rows`). The copies have derivatives of both modes.
    """
    return linear(lambda one: [one] * group.local, lambda *cotangents: [_total(group, *cotangents)[0]], value)


def _total(group: Group, *components: jax.Array) -> list[Any]:
    """Sums one array over all replicas, and returns the sum once per replica of this device.

    It has derivatives of both modes, and is its own transpose.
    """

    def function(*arrays: jax.Array) -> list[Any]:
        return [_sum_of_cotangents(group, list(arrays))] * group.local

    return linear(function, functools.partial(_total, group), *components)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fan_out_once(group: Group, value: jax.Array) -> list[Any]:
    """Copies a value for each replica of this device, with a gradient on the first device only.

    On the first device, the cotangent of `value` is the sum of the cotangents of all replicas; on the others it is
    zero. The reason is that the operations that have computed `value` on every device, such as a reduction over
    replicas, sum the devices' cotangents in their backward pass. If each device returned the whole sum, the gradient
    would be too large by the number of devices.
    """
    return [value] * group.local


def _fan_out_once_forward(group: Group, value: jax.Array) -> tuple[list[Any], None]:
    return fan_out_once(group, value), None


def _fan_out_once_backward(group: Group, _: None, cotangents: list[Any]) -> tuple[Any]:
    total = _sum_of_cotangents(group, cotangents)
    if group.axis is None:
        return (total,)
    return (jnp.where(lax.axis_index(group.axis) == 0, total, jnp.zeros_like(total)),)


fan_out_once.defvjp(_fan_out_once_forward, _fan_out_once_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _all_sum(group: Group, arrays: list[list[Any]]) -> list[list[Any]]:
    """Returns each array's sum over all replicas, once per replica of this device; its VJP sums in the same order."""
    results = [[components[0]] * group.local for components in arrays]
    places = [i for i, components in enumerate(arrays) if components[0].size]
    if places:
        wide = [[widen(component) for component in arrays[i]] for i in places]
        for i, total in zip(places, tree_sums(wide, group), strict=True):
            results[i] = [narrow(with_positive_zeros(total), arrays[i][0].dtype)] * group.local
    return results


def _all_sum_forward(group: Group, arrays: list[list[Any]]) -> tuple[list[list[Any]], None]:
    return _all_sum(group, arrays), None


def _all_sum_backward(group: Group, _: None, cotangents: list[list[Any]]) -> tuple[list[list[Any]]]:
    # JAX passes float0 arrays as the cotangents of integers. They are zeros without bits, which cannot be added.
    results = list(cotangents)
    places = [i for i, components in enumerate(cotangents) if components[0].dtype != jax.dtypes.float0]
    for i, totals in zip(places, _all_sum(group, [cotangents[i] for i in places]), strict=True):
        results[i] = totals
    return (results,)


_all_sum.defvjp(_all_sum_forward, _all_sum_backward)


def tree_sums(arrays: Sequence[Sequence[Any]], group: Group) -> list[Any]:
    """Sums non-empty arrays over all replicas, in the order of a fixed binary tree."""
    partial = PartialSums(group.slots)
    if group.axis is None or (partial.is_complete and group.devices & (group.devices - 1) == 0):
        totals = _sum_locally(arrays, group, partial)
        if group.axis is None:
            return totals
        totals = [not_constant(value) for value in totals]
        pairs = functools.partial(_sum_by_pairs, axis=group.axis, devices=group.devices)
        return over_small_buckets(pairs, totals, kernel=isolate) if group.spans_processes else pairs(totals)
    columns = [[not_constant(value) for value in components] for components in arrays]
    exchange = functools.partial(_sum_own_pieces, axis=group.axis, partial=partial)
    return _over_packed_rows(exchange, columns, functools.partial(_packed, group=group, partial=partial))


def _sum_locally(arrays: Sequence[Sequence[Any]], group: Group, partial: PartialSums) -> list[Any]:
    """Sums each array over the replicas of this device; every device must have exactly one partial sum."""
    if group.local == 1:  # nothing is added, and the exchange itself is a fusion boundary
        return [components[0] for components in arrays]
    return isolate_lists(_adder(partial.patterns[0], partial.rows), arrays, partial.rows)


@functools.cache
def _adder(pattern: Pattern, rows: int) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
    """Returns a function that computes partial sums, cached because JAX caches traces by function object."""

    def add(lists: Sequence[Sequence[Any]]) -> list[Any]:
        return [value for components in lists for value in partial_sums(components, pattern, rows)]

    return add


def _sum_by_pairs(totals: list[Any], axis: str, devices: int) -> list[Any]:
    """Computes a summation tree's upper levels on 2^n devices: devices at distance 1, 2, 4, ... add their values."""
    distance = 1
    while distance < devices:
        pairs = [[i, i + distance] for i in range(devices) if not i & distance]
        # The barrier keeps XLA's pass `all-reduce-folder` (on GPUs) from folding the levels into one all-reduce, whose
        # order of sums would be that of the library. In jaxlib 0.10 to 0.12, XLA removes barriers only after this pass
        # (unlike fusion, see `collectives.summation`).
        totals = list(lax.optimization_barrier(lax.psum(tuple(totals), axis, axis_index_groups=pairs)))
        distance *= 2
    return [equal_on_all_devices(total, axis) for total in totals]


def _over_packed_rows(
    collective: Callable[[Sequence[jax.Array]], jax.Array],
    arrays: Sequence[Sequence[Any]],
    pack: Callable[[Sequence[Sequence[Any]]], Sequence[jax.Array]],
) -> list[Any]:
    """Sums arrays over replicas by a collective on flat rows; packs the small arrays of each dtype into one buffer.

    A fusion boundary lies on both sides: what computes the arrays, and what reads the results, is compiled as on one
    device, where nothing is exchanged.

    Args:
        collective: Maps the rows of a device to the sum of all replicas, ``[n]``.
        arrays: The components of each array, not empty.
        pack: Maps the components of several arrays to rows, behind a fusion boundary.
    """
    results: list[Any] = [components[0] for components in arrays]
    small = [i for i, (first, *_) in enumerate(arrays) if first.size * first.dtype.itemsize <= SMALL_BYTES]
    dtypes = dict.fromkeys(arrays[i][0].dtype for i in small)
    buckets = [[i for i in small if arrays[i][0].dtype == dtype] for dtype in dtypes]
    for places in [*buckets, *([i] for i in range(len(arrays)) if i not in small)]:
        unpack = functools.partial(unpack_buckets, shapes=[arrays[i][0].shape for i in places])
        parts = isolate(unpack, [collective(pack([arrays[i] for i in places]))])
        for i, part in zip(places, parts, strict=True):
            results[i] = part
    return results


def _packed(arrays: Sequence[Sequence[Any]], group: Group, partial: PartialSums) -> Sequence[jax.Array]:
    """Computes this device's partial sums, packed in rows ``[n]`` whose length n is a multiple of the device count.

    A row contains one partial sum of each array. The branch of a conditional computes it: that is a fusion boundary.
    """
    patterns = list(dict.fromkeys(partial.patterns))
    branches = [
        functools.partial(_pack_rows, pattern=pattern, rows=partial.rows, multiple=group.devices)
        for pattern in patterns
    ]
    lists = [list(components) for components in arrays]
    if len(patterns) == 1:
        flat = [component for components in lists for component in components]
        return isolate(lambda values: branches[0](_split(values, group.local)), flat)
    # Computed with scalars only: a constant array would be a value over which the derivative rule closes.
    place = lax.axis_index(group.axis)
    numbers = [jnp.where(place == device, patterns.index(one), 0) for device, one in enumerate(partial.patterns)]
    return list(lax.switch(functools.reduce(operator.add, numbers), branches, lists))


def _split(values: Sequence[Any], count: int) -> list[Sequence[Any]]:
    return [values[start : start + count] for start in range(0, len(values), count)]


def _pack_rows(arrays: Sequence[Sequence[Any]], pattern: Pattern, rows: int, multiple: int) -> list[Any]:
    sums = [partial_sums(components, pattern, rows) for components in arrays]
    flat = [jnp.concatenate([jnp.ravel(one[k]) for one in sums]) for k in range(rows)]
    return [jnp.pad(row, (0, -row.size % multiple)) for row in flat]


def _sum_own_pieces(rows: Sequence[jax.Array], axis: str, partial: PartialSums) -> Any:
    """Sums rows ``[n]`` over devices: each device adds the partial sums for an equal share of the n elements.

    An all-to-all gives each device its elements of all devices' rows, and an all-gather joins the sums.
    """
    pieces = [lax.all_to_all(row.reshape(partial.slots.devices, -1), axis, 0, 0) for row in rows]
    return lax.all_gather(partial.joined(pieces), axis, tiled=True)
