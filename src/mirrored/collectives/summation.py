"""Sums with controlled order and precision: pairwise sums, float32 accumulation, fusion boundaries for XLA."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.array_types import keeping_width
from mirrored._jax.linear import linear
from mirrored._jax.rounding import rounded_to
from mirrored._typing import DTypeLike, PyTree
from mirrored.topology.slots import Slots

# `Group`, which describes how replicas are placed on the devices of a mesh axis.


@dataclasses.dataclass(frozen=True)
class Group:
    """The replicas that take part in a reduction, as seen from the `shard_map` body of one device.

    There are R = `devices` x `local` - `padded` replicas. Every device computes `local` components. On the last
    `padded` devices the last component belongs to no replica (`topology.slots`), and no reduction may include it. (In
    the code, *folding* means several replicas per device. The *local* replicas of a group are those of one device, as
    in a compiled run; `runtime.lockstep` defines the term for all runs.)

    Attributes:
        axis: The mesh axis of the devices. None if there is one device, which needs no collectives.
        devices: D, the size of the axis.
        local: K, the number of slots per device: virtual replicas, and on some devices one empty slot.
        spans_processes: Whether the devices belong to several processes. Each buffer then costs a separate message.
        padded: The number of empty slots, 0 if D divides R.

    Example:
        >>> Group(axis="mirrored_replica", devices=2, local=2).num_replicas
        4
    """

    axis: str | None
    devices: int
    local: int
    spans_processes: bool = False
    padded: int = 0

    @property
    def num_replicas(self) -> int:
        """The total number of replicas that take part in the reduction (R)."""
        return self.devices * self.local - self.padded

    @property
    def slots(self) -> Slots:
        """The assignment of the group's replicas to devices, as a `Slots` object."""
        return Slots(self.devices, self.num_replicas)

    def is_real(self) -> Any:
        """Returns, as a traced boolean, whether the last replica slot of the executing device holds a replica.

        It is needed only for groups with empty slots.
        """
        assert self.axis is not None
        return lax.axis_index(self.axis) < self.slots.full

    def with_neutral(self, components: Sequence[Any]) -> list[Any]:
        """Returns this device's components, with -0.0 (which changes no sum) in place of an empty slot's component.

        The neutral element is -0.0: x + -0.0 is x for every x, but -0.0 + 0.0 is 0.0.
        """
        if not self.padded:
            return list(components)
        *others, before, last = [jnp.asarray(component) for component in components]
        if jnp.issubdtype(last.dtype, jnp.inexact):
            return [*others, *_dropping(self.is_real(), before, last)]
        return [*others, before, jnp.where(self.is_real(), last, jnp.zeros_like(last))]

    def sent(self, components: Sequence[Any]) -> list[Any]:
        """Returns this device's components unchanged, for an all-gather that drops the component of an empty slot.

        The cotangent of an empty slot's component is that of the slot before.
        """
        if not self.padded or not jnp.issubdtype(components[-1].dtype, jnp.inexact):
            return list(components)
        return [*components[:-2], *_sending(self.is_real(), *components[-2:])]

    def for_each_local(self, value: Any) -> list[Any]:
        """Returns a list with one copy of `value` per local replica slot; an empty slot's copy has gradient zero."""
        copies = [value] * self.local
        return [*copies[:-1], without_padding_gradient(value, self.is_real())] if self.padded else copies


# The derivatives of what slots send to collectives and receive from them. An empty slot computes the same as the slot
# before it, and nothing that it computes has an effect (`topology.slots`). So that this holds for derivatives of any
# order, a map that drops what an empty slot sends has a transpose that gives the slot what the slot before it receives,
# and the other way round. With zeros instead, a loop over a gradient may not end in the slot.


def _dropping(is_real: jax.Array, before: jax.Array, last: jax.Array) -> list[Any]:
    """Replaces the component of an empty slot by -0.0."""
    return linear(_or_neutral, _repeating, before, last, residuals=[is_real])


def _sending(is_real: jax.Array, before: jax.Array, last: jax.Array) -> list[Any]:
    """Returns the components of a device's last two slots unchanged."""
    return linear(lambda _, before, last: [before, last], _repeating, before, last, residuals=[is_real])


def _repeating(is_real: jax.Array, before: jax.Array, last: jax.Array) -> list[Any]:
    """Replaces the component of an empty slot by that of the slot before."""
    return linear(_or_before, _dropping, before, last, residuals=[is_real])


def _or_neutral(is_real: jax.Array, before: jax.Array, last: jax.Array) -> list[Any]:
    neutral = jnp.full_like(last, complex(-0.0, -0.0) if jnp.iscomplexobj(last) else -0.0)
    return [before, jnp.where(is_real, last, neutral)]


def _or_before(is_real: jax.Array, before: jax.Array, last: jax.Array) -> list[Any]:
    return [before, jnp.where(is_real, last, before)]


def without_padding_gradient(value: Any, is_real: Any) -> Any:
    """Returns `value` unchanged, but stops gradients to `value` if `is_real` is False, i.e. in an empty replica slot.

    The gradient is selected, not multiplied: the slot multiplies zero cotangents by any derivative, which may give NaN.
    Tangents (forward mode) pass unchanged.
    """
    is_inexact = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)
    return _receiving(is_real, value)[0] if is_inexact else value


def _receiving(is_real: jax.Array, value: jax.Array) -> list[Any]:
    """Returns a value that a slot receives unchanged."""
    return linear(lambda _, value: [value], _returning, value, residuals=[is_real])


def _returning(is_real: jax.Array, cotangent: jax.Array) -> list[Any]:
    """Replaces what an empty slot returns, a cotangent, by zero."""
    return linear(_or_zero, _receiving, cotangent, residuals=[is_real])


def _or_zero(is_real: jax.Array, cotangent: jax.Array) -> list[Any]:
    return [jnp.where(is_real, cotangent, jnp.zeros_like(cotangent))]


# The dtypes of sums and means: that of the addends, but float32 for the mean of integers.


def floating(array: jax.Array) -> Any:
    """Converts integers and booleans to float32, in which their mean is computed; returns other arrays unchanged."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.float32)


def sum_along(array: jax.Array, axes: int | tuple[int, ...]) -> Any:
    """Sums an array along axes without changing its dtype, unlike `jnp.sum` for small integers."""
    return jnp.sum(array, axes, dtype=array.dtype if jnp.issubdtype(array.dtype, jnp.integer) else None)


def quotient(total: jax.Array, count: int) -> Any:
    """Divides a total by a count; keeps the 64 bits of a total that a block of `jax.enable_x64(True)` has made."""
    with keeping_width(total.dtype.name):
        return total / count


# Conversions of floats of at most 16 bits for sums and means, which accumulate in float32 and round once.


def widen(array: jax.Array) -> Any:
    """Converts floats of at most 16 bits to float32, for accumulation; returns other arrays unchanged.

    The explicit rounding is needed because XLA may keep excess precision across a pair of conversions.
    """
    return rounded_to(array.astype(jnp.float32), array.dtype) if _is_narrow(array.dtype) else array


def narrow(array: jax.Array, dtype: DTypeLike) -> Any:
    """Rounds a float32 sum back to a float `dtype` of at most 16 bits; for other dtypes returns the array unchanged."""
    return rounded_to(array, dtype).astype(dtype) if _is_narrow(dtype) else array


def _is_narrow(dtype: DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize <= 2


# Pairwise summation by a balanced binary tree.


def sum_pairs(values: Sequence[Any]) -> list[Any]:
    """Adds adjacent pairs of values: one level of a binary summation tree.

    An unpaired last value is passed through.
    """
    paired = [one + other for one, other in zip(values[::2], values[1::2], strict=False)]
    return paired + list(values[len(paired) * 2 :])


def tree_sum(values: Sequence[Any]) -> Any:
    """Sums `values` pairwise, by a balanced binary tree over their positions.

    The rounding error grows with the logarithm of the number of values.

    Source: N. J. Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14 (1993):
    pairwise summation.
    """
    values = list(values)
    while len(values) > 1:
        values = sum_pairs(values)
    return values[0]


def with_positive_zeros(total: jax.Array) -> Any:
    """Replaces -0.0 by 0.0, including in both parts of complex numbers; returns arrays of integers unchanged.

    Sums of -0.0 have different signs: an addition gives -0.0, but an all-reduce of XLA for CPU begins with 0.0 and
    gives 0.0. Other sums do not depend on the signs of zeros among their addends, so it suffices to replace the last
    one. It is a selection, because XLA simplifies `x + 0.0` to `x`.
    """
    if jnp.iscomplexobj(total):
        return lax.complex(with_positive_zeros(lax.real(total)), with_positive_zeros(lax.imag(total)))
    if not jnp.issubdtype(total.dtype, jnp.floating):
        return total
    with keeping_width(total.dtype.name):
        zeros = lax.full_like(total, 0)
    return lax.select(lax.eq(total, zeros), zeros, total)


def not_constant(value: jax.Array) -> jax.Array:
    """Hides a complex-valued array from XLA's constant folding; returns arrays of other dtypes unchanged.

    XLA on CPUs aborts the process when it compiles an all-reduce of a complex constant (jaxlib 0.10 to 0.12).
    """
    return lax.optimization_barrier(value) if jnp.iscomplexobj(value) else value


# Fusion boundaries, which make a sum bit-identical in every program that computes it.
#
# The problem: if XLA fuses a multiplication and a following addition into one kernel, it may contract them into one
# fused multiply-add (FMA), which rounds once instead of twice. Whether XLA fuses them depends on the surrounding
# program, for example on whether a collective, which is never fused, lies between them.
#
# The solution: XLA compiles a conditional whose predicate is known only at run time as a separate computation. Its
# operands and results are buffers, and no fusion crosses them. So `isolate` puts the computation into a branch of such
# a conditional, whose other branch is never taken. `bounded` puts nothing into the branch: the conditional alone
# separates the code before it from the code after it.
#
# On GPUs a conditional is no boundary, because XLA turns one with cheap branches into a select and fuses it. XLA for
# GPUs removes optimization barriers only after fusion, so barriers surround the conditional as well.
#
# Two alternatives do not work:
#
# - `optimization_barrier` alone holds only until XLA removes it. On CPUs, jaxlib 0.10 removes it before fusion. That
#   jaxlib 0.12 removes it after fusion does not help, because both are supported *(seen in dumps of the passes)*. (It
#   does keep collectives apart, as in `fixed_order_tree`, because XLA folds collectives before it removes barriers.)
# - An exclusive-or of the bits with a zero that is known only at run time prevents fusion with the operands. But XLA
#   fuses the exclusive-or into the kernel that reads the result. That kernel differs from the one that reads a
#   collective's result, and may round differently: the same update has other bits on one device than on several
#   *(observed in momentum updates)*.


def opaque_false(array: jax.Array) -> Any:
    """Returns a scalar False, computed from `array` in a way that XLA cannot constant-fold.

    XLA can fold the scalar only if `array` is a constant. It is computed from the first element: the exponential of a
    number that is not positive is at most 1, and a comparison with NaN is False.
    """
    # Primitives instead of `jnp` functions: JAX traces each of those functions once per shape, which took a quarter of
    # the time of tracing a step.
    first = lax.squeeze(lax.slice(array, [0] * array.ndim, [1] * array.ndim), range(array.ndim))
    if jnp.iscomplexobj(first):
        first = lax.real(first)
    size = lax.abs(lax.convert_element_type(first, jnp.float32))
    return lax.gt(lax.exp(lax.neg(size)), jnp.float32(2.0))


def isolate_lists(
    function: Callable[[Any], Sequence[Any]], operands: Sequence[Sequence[Any]], results_per_list: int
) -> list[Any]:
    """Applies `function` to lists of arrays, so that XLA fuses none of the function's operations with other code.

    Args:
        function: Maps the lists to a flat list of results: `results_per_list` for each list, of the shape and dtype of
            its arrays. Pass the same function object in repeated eager calls: JAX keys its cache by it.
        operands: Lists of arrays. The arrays of one list have one shape and dtype. The first array of the first list is
            not empty.
        results_per_list: The number of results per list.
    """
    never_taken = _firsts(results_per_list)
    return _in_own_branch(never_taken, function, [list(arrays) for arrays in operands])


def _in_own_branch(
    never_taken: Callable[[Any], list[Any]], function: Callable[[Any], Sequence[Any]], operands: PyTree
) -> list[Any]:
    """Runs `function` in the always-taken branch of a `lax.cond`, which XLA does not fuse with other code.

    The other branch, `never_taken`, only prevents XLA from removing the conditional.
    """
    # The barriers are for GPUs, where XLA turns a conditional with cheap branches into a select and fuses it.
    operands = lax.optimization_barrier(operands)
    # The predicate reads the buffer behind the barrier. If it read the operand itself, XLA might compute it twice.
    predicate = opaque_false(jax.tree.leaves(operands)[0])
    return list(lax.optimization_barrier(list(lax.cond(predicate, never_taken, function, operands))))


@functools.cache
def _firsts(results_per_list: int) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
    """Returns a function that repeats the first array of each list `results_per_list` times.

    It is the `cond` branch that `isolate_lists` never takes. It is cached because JAX keys compiled programs by the
    identity of the branch functions: an eager `cond` over new function objects compiles again.
    """

    def never_taken(lists: Sequence[Sequence[Any]]) -> list[Any]:
        return [arrays[0] for arrays in lists for _ in range(results_per_list)]

    return never_taken


def isolate(function: Callable[[Any], list[Any]], operands: Sequence[Any]) -> list[Any]:
    """Applies `function` to a list of arrays, so that XLA fuses none of the function's operations with other code.

    Use it in traces: every eager call compiles again, because JAX keys compiled programs by the identity of the branch
    functions, and each call makes a new one. `isolate_lists` avoids that.

    Args:
        function: Maps the list to a list of results of any shapes and dtypes.
        operands: The arrays. The first one is not empty.
    """
    results = jax.eval_shape(function, list(operands))

    def never_taken(_: object) -> list[Any]:
        return [_zeros(result) for result in results]

    return _in_own_branch(never_taken, function, list(operands))


def _zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
    with keeping_width(like.dtype.name):  # arrays of 64 bits that a `with jax.enable_x64(True)` block has made
        return jnp.zeros(like.shape, like.dtype)


@jax.custom_vjp
def bounded(arrays: list[Any]) -> list[Any]:
    """Puts a fusion boundary between the code that computes floating-point arrays and the code that reads them.

    Their cotangents pass through a boundary as well. Empty arrays need none.
    """
    places = [i for i, array in enumerate(arrays) if array.size]
    results = list(arrays)
    if places:
        for i, result in zip(places, isolate(list, [arrays[i] for i in places]), strict=True):
            results[i] = result
    return results


bounded.defvjp(lambda arrays: (bounded(arrays), None), lambda _, cotangents: (bounded(cotangents),))


def stack_isolated(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Stacks lists of arrays, so that XLA does not fuse the stacking with the computation of the arrays.

    Without the boundary, XLA may compute a component inside the kernel that writes the stacked array. The kernel, and
    with it the contraction of `a * b + c * d`, depends on the number of components, i.e. the number of replicas on the
    device. A column of one component therefore needs the boundary as well.
    """
    stacked = [jnp.stack(list(components)) for components in columns]
    places = [i for i, one in enumerate(stacked) if one.size and jnp.issubdtype(one.dtype, jnp.inexact)]
    if places:
        sizes = tuple(len(columns[i]) for i in places)
        parts = [component for i in places for component in columns[i]]
        for i, isolated in zip(places, isolate(functools.partial(_stack, sizes=sizes), parts), strict=True):
            stacked[i] = isolated
    return stacked


def unstack_isolated(arrays: Sequence[Any]) -> list[list[Any]]:
    """Splits arrays along axis 0, so that XLA does not fuse the split with other operations.

    Without the boundary, XLA may read a component inside the kernel that uses it. The kernel, and with it the
    contraction of `a * b + c * d`, depends on whether it has to slice an array of several components.
    """
    rows = [_rows(array) for array in arrays]
    places = [i for i, one in enumerate(arrays) if one.size and not jnp.issubdtype(one.dtype, jax.dtypes.extended)]
    if places:
        parts = iter(isolate(_all_rows, [arrays[i] for i in places]))
        for i in places:
            rows[i] = [next(parts) for _ in rows[i]]
    return rows


def _rows(stacked: Any) -> list[Any]:
    # Iteration over a tracer would add a jitted helper to the program.
    return [stacked[k] for k in range(stacked.shape[0])]


def _all_rows(arrays: Sequence[Any]) -> list[Any]:
    return [row for array in arrays for row in _rows(array)]


def _stack(parts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    rest = iter(parts)
    return [jnp.stack([next(rest) for _ in range(size)]) for size in sizes]
