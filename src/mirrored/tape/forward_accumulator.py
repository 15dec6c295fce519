"""`ForwardAccumulator`: directional derivatives (Jacobian-vector products) of recorded code."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array
from mirrored._jax.boxes import payload_of
from mirrored._jax.placement import is_device_mismatch
from mirrored._jax.trees import in_order_of
from mirrored._typing import PyTree
from mirrored.errors import ArgumentError, StructureError, TapeError
from mirrored.runtime.ambient import ambient
from mirrored.tape.backward import (
    UnconnectedGradients,
    is_variable,
    refuse_padded,
    shape_of,
    source_of,
    zeros_like_source,
)
from mirrored.tape.gradient_tape import GradientTape, target_value


class ForwardAccumulator:
    """A context manager that computes directional derivatives (JVPs) of the code in its block.

    Context: any. Accumulators and tapes can be nested.

    Args:
        primals: The arrays or variables at which derivatives are taken: one, or a structure of them.
        tangents: The direction: arrays of the same shapes and dtypes, in the same structure.

    Raises:
        StructureError: The structures, shapes or dtypes differ, or a primal occurs twice.

    Example:
        >>> x = jnp.array([1.0, 2.0])
        >>> with ForwardAccumulator(x, jnp.array([1.0, 0.0])) as accumulator:
        ...     y = x * x
        >>> accumulator.jvp(y).tolist()
        [2.0, 0.0]

    TensorFlow: `tf.autodiff.ForwardAccumulator`. A tape records the block. `jvp` transposes the linear function that
    maps cotangents of its argument to those of the primals, so each call costs about one backward pass, and the block
    needs backward derivatives, which a compiled `lax.while_loop` does not have.
    """

    def __init__(self, primals: PyTree, tangents: PyTree) -> None:
        refuse_padded(primals, "ForwardAccumulator")
        leaves, treedef = _leaves(primals)
        leaves = [source_of(one, "ForwardAccumulator") for one in leaves]
        directions, other = _leaves(tangents)
        if treedef != other:
            raise StructureError(
                "ForwardAccumulator",
                found=f"The two structures don't have the same nested structure: {treedef} and {other}",
                rule="tangents must have the structure of the primals",
                remedy="pass one tangent per primal",
            )
        if len({id(one) for one in leaves}) < len(leaves):
            raise StructureError(
                "ForwardAccumulator",
                found="an array or variable occurs multiple times among the primals",
                rule="every primal must occur once, with one tangent",
                remedy="pass it once, with the sum of its tangents",
            )
        self._primals = leaves
        self._tangents = [_tangent(one, primal) for one, primal in zip(directions, leaves, strict=True)]
        self._tape = _ForwardTape(persistent=True, watch_accessed_variables=False)
        self._recording = False
        self._around: tuple[_ForwardTape, ...] = ()

    def __enter__(self) -> Self:
        """Starts recording. An accumulator that is entered again adds to its earlier records.

        Raises:
            ArgumentError: The accumulator is already recording.
        """
        if self._recording:
            raise ArgumentError(
                "ForwardAccumulator.__enter__",
                found="Accumulator is already recording.",
                rule="only one `with` block at a time can use an accumulator",
                remedy="use a second ForwardAccumulator for the inner block",
            )
        self._around = tuple(one for one in ambient().listeners if isinstance(one, _ForwardTape))
        try:
            self._recording = True
            self._tape.__enter__()
            self._tape.watch(self._primals)
            return self
        except BaseException:  # an interrupt, such as Ctrl-C: the block does not run, so that nothing would end it
            self._recording = False
            if self._tape.is_recording:
                self._tape.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stops recording; the records remain available to `jvp`."""
        try:
            self._recording = False
            self._tape.__exit__(kind, error, where)
        except BaseException:  # an interrupt, such as Ctrl-C
            if self._tape.is_recording:
                self._tape.__exit__(kind, error, where)
            raise

    def jvp(
        self, primals: PyTree, unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE
    ) -> Any:
        """Computes the directional derivatives (JVPs) of arrays that were computed in the accumulator's ``with`` block.

        Args:
            primals: An array or a watched variable, or a structure of them.
            unconnected_gradients: The value for an array that does not depend on the accumulator's primals.

        Returns:
            The derivatives, in the structure of `primals`: None, or zeros if `unconnected_gradients` is `ZERO`, for an
            array that does not depend on the accumulator's primals.
        """
        unconnected = UnconnectedGradients.of(unconnected_gradients)
        refuse_padded(primals, "ForwardAccumulator.jvp")
        leaves, treedef = _leaves(primals)
        with contextlib.ExitStack() as stack:
            # The accumulators around this one also differentiate its results, even if their blocks have ended.
            for tape in self._around:
                if not tape.is_recording:
                    stack.enter_context(tape)
            found = [self._along(one) for one in leaves]
        if unconnected is UnconnectedGradients.ZERO:
            found = [
                zeros_like_source(one) if value is None else value for one, value in zip(leaves, found, strict=True)
            ]
        return in_order_of(primals, jax.tree.unflatten(treedef, found))

    def _along(self, target: Any) -> Any:
        value = payload_of(target_value(target))
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return None
        if self._tape.waits_for_replicas:
            return self._along_by_tapes(target, value)
        try:
            return self._along_by_jax(target, value)
        except Exception as error:
            if not is_device_mismatch(error) and not isinstance(error, TapeError):
                raise
            return self._along_by_tapes(target, value)  # the replicas of an eager run compute on their devices

    def _along_by_jax(self, target: Any, value: jax.Array) -> Any:
        connected: list[int] = []

        def pull(cotangent: jax.Array) -> list[jax.Array]:
            gradients = self._tape.gradient(target, self._primals, output_gradients=cotangent)
            connected[:] = [place for place, one in enumerate(gradients) if one is not None]
            return [gradients[place] for place in connected]

        transposed = jax.linear_transpose(pull, jax.ShapeDtypeStruct(value.shape, value.dtype))
        if not connected:
            return None
        tangents = [self._tangents[place] for place in connected]
        try:
            (result,) = transposed(tangents)
        except NotImplementedError:
            # JAX does not transpose a `jax.custom_vjp` function, such as a sum over replicas in a fixed order, but it
            # differentiates it. The derivative of a linear function is its transpose.
            _, derivative = jax.vjp(pull, jnp.zeros(value.shape, value.dtype))
            (result,) = derivative(tangents)
        return result

    def _along_by_tapes(self, target: Any, value: jax.Array) -> Any:
        """Computes the derivative where a tape can compute gradients, and a transform of JAX cannot.

        This is the case for a recorded merge, in which replicas wait, and for arrays on several devices. A second tape
        records the backward pass, which is linear in the cotangent; its gradient is the transpose.
        """
        with GradientTape(watch_accessed_variables=False) as tape:
            cotangent = jnp.zeros(value.shape, value.dtype)
            tape.watch(cotangent)
            gradients = self._tape.gradient(target, self._primals, output_gradients=cotangent)
        connected = [place for place, one in enumerate(gradients) if one is not None]
        if not connected:
            return None
        tangents = [self._tangents[place] for place in connected]
        return tape.gradient([gradients[place] for place in connected], cotangent, output_gradients=tangents)


class _ForwardTape(GradientTape):
    """The tape on which a `ForwardAccumulator` records operations."""

    @property
    def waits_for_replicas(self) -> bool:
        """Whether a recorded operation runs once for all replicas, so that its gradient needs all of them, too."""
        return any(record.needs_all_replicas for record in self._recorder.records)

    @property
    def is_recording(self) -> bool:
        """Whether the tape is inside its ``with`` block, and therefore records operations."""
        return self._entered


def _leaves(structure: PyTree) -> tuple[list[Any], Any]:
    return jax.tree.flatten(structure, is_leaf=is_variable)


def _tangent(tangent: Any, primal: Any) -> jax.Array:
    array = as_array(tangent)
    shape = shape_of(primal)
    if np.shape(array) != shape or array.dtype != primal.dtype:
        raise StructureError(
            "ForwardAccumulator",
            found=f"a tangent is {array.dtype}{list(array.shape)}, its primal {primal.dtype}{list(shape)}",
            rule="a tangent must have the shape and dtype of its primal",
            remedy="convert it: jnp.broadcast_to(tangent, primal.shape).astype(primal.dtype)",
        )
    return array
