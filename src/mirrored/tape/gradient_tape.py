"""`GradientTape`: records operations and computes their gradients and Jacobians; `unrecorded` suspends all tapes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_types import ones_like
from mirrored._jax.arrays import as_array
from mirrored._jax.boxes import Array, payload_of
from mirrored._jax.jaxprs import aval_of, is_inexact
from mirrored._jax.placement import movable, put_on
from mirrored._jax.traces import current_trace, is_eval, is_staging_above
from mirrored._jax.trees import positions_in_order
from mirrored._typing import Operand, PyTree
from mirrored.errors import StructureError, TapeError
from mirrored.runtime.ambient import ReadableVariable, ambient
from mirrored.runtime.component_reads import as_stored
from mirrored.runtime.entry_point import restoring
from mirrored.tape import backward as jacobians
from mirrored.tape.backward import (
    UnconnectedGradients,
    Walk,
    announced,
    flatten_sources,
    flatten_targets,
    is_leaf,
    is_variable,
    refuse_padded,
    shape_of,
    source_of,
    tape_leaves,
    zeros_like_source,
)
from mirrored.tape.no_derivative import Key
from mirrored.tape.recording import Recording
from mirrored.tape.trace import TapeTrace

_log = logging.getLogger("mirrored.tape")


class GradientTape(Recording):
    """A tape that records the JAX operations in its ``with`` block, and differentiates them afterwards.

    The tape watches each trainable variable that is read in the block. It watches arrays that are passed to `watch`. It
    records everything that JAX can differentiate: `jax.numpy`, `lax.scan`, `cond`, `jit`, `checkpoint`, and libraries
    built on them. It works in eager code and inside compiled functions, and tapes may be nested. In addition to what
    JAX supports, it differentiates `lax.while_loop` outside of compiled code.

    Context: any. Inside `Strategy.run` each replica has its own tape. A tape opened around `run` records through it.

    Args:
        persistent: Whether gradients can be computed several times. A persistent tape keeps its records until it is
            garbage-collected. The first gradient frees the records of any other tape.
        watch_accessed_variables: Whether reading a trainable variable watches it.

    Example:
        >>> x = jnp.array(3.0)
        >>> with GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> float(tape.gradient(y, x))
        6.0

    TensorFlow: `tf.GradientTape`. Gradients of complex values follow JAX; TensorFlow returns the conjugate. Gradients
    are always dense. At a tie, `maximum` passes half of the gradient to each operand.
    """

    # Gradients

    @restoring
    def gradient(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """Computes the gradients of the sum of a target's elements with respect to each source.

        Args:
            target: An array computed in the block, or a structure of arrays. The gradients of several arrays are added.
            sources: Watched arrays, variables, arrays computed in the block, or a structure of them.
            output_gradients: The initial cotangents: arrays of the targets' shapes, in the structure of the targets.
                None means ones.
            unconnected_gradients: The value for a source on which the target does not depend.

        Returns:
            The gradients, in the structure of `sources`. The gradient of an unconnected source is None, or zeros if
            `unconnected_gradients` is `ZERO`.

        Raises:
            TapeError: The tape is not persistent and has already computed a gradient; the gradient passes through an
                operation without a derivative; or, outside of `run`, a source is a sync-on-read variable with
                aggregation NONE. (With another aggregation, the gradient there is the sum over all components.)
            ArgumentTypeError: A target or source is neither an array nor a variable.
            StructureError: `output_gradients` does not match the targets.

        Example:
            >>> x, y = jnp.array(2.0), jnp.array(5.0)
            >>> with GradientTape() as tape:
            ...     tape.watch((x, y))
            ...     z = x * x * y
            >>> {name: float(value) for name, value in tape.gradient(z, {"x": x, "y": y}).items()}
            {'x': 20.0, 'y': 4.0}

        TensorFlow: the same, except that fewer output gradients than targets are an error. A source on which the target
        does not depend has no gradient in compiled code either, where TensorFlow's traced loops, branches and calls
        give 0.0 if another of their results depends on the source.
        """
        unconnected = UnconnectedGradients.of(unconnected_gradients)
        self._check_unused("GradientTape.gradient")
        targets = flatten_targets(target, "GradientTape.gradient")
        leaves, rebuild = flatten_sources(sources, "GradientTape.gradient")
        weights = _weights(targets, target, output_gradients)
        with self._differentiating() as walk:
            gradients = self._pull(walk, targets, weights, leaves)
        return rebuild(
            [_placed_or_zeros(gradient, leaf, unconnected) for gradient, leaf in zip(gradients, leaves, strict=True)]
        )

    @restoring
    def jacobian(
        self,
        target: jax.Array | ReadableVariable,
        sources: PyTree,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Computes the derivative of each element of a target with respect to each element of the sources.

        Args:
            target: One array computed in the block.
            sources: As in `gradient`.
            unconnected_gradients: As in `gradient`.
            parallel_iterations: Has no effect; all rows are computed at once. It is accepted for compatibility with
                TensorFlow.
            experimental_use_pfor: Whether to compute all rows at once with `jax.vmap`. False computes them one by one,
                which needs less memory.

        Returns:
            Arrays of shape ``target.shape + source.shape``, in the structure of `sources`.

        Raises:
            TapeError: The tape is not persistent and has already computed a gradient.
            ArgumentTypeError: The target is not a single array.

        Example:
            >>> x = jnp.array([1.0, 2.0])
            >>> with GradientTape() as tape:
            ...     tape.watch(x)
            ...     y = x * x
            >>> tape.jacobian(y, x).tolist()
            [[2.0, 0.0], [0.0, 4.0]]

        TensorFlow: the same, except that `experimental_use_pfor=False` does not need a persistent tape.
        """
        called = "GradientTape.jacobian"
        unconnected = UnconnectedGradients.of(unconnected_gradients)
        self._check_unused(called)
        jacobians.check_single(target, called)
        refuse_padded(sources, called)
        leaves, rebuild = flatten_sources(sources, called)
        shape = shape_of(target)
        rows = jacobians.rows(shape, target.dtype)
        results = self._pull_rows(target, rows, leaves, vectorized=experimental_use_pfor)
        shaped = [
            None if result is None else jnp.reshape(result, (*shape, *shape_of(leaf)))
            for result, leaf in zip(results, leaves, strict=True)
        ]
        if unconnected is UnconnectedGradients.ZERO:
            shaped = [
                jnp.zeros((*shape, *shape_of(leaf)), leaf.dtype) if result is None else result
                for result, leaf in zip(shaped, leaves, strict=True)
            ]
        return rebuild(shaped)

    def batch_jacobian(
        self,
        target: jax.Array | ReadableVariable,
        source: jax.Array | ReadableVariable,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> jax.Array:
        """Computes one Jacobian per example: of row i of the target with respect to row i of the source.

        Args:
            target: One array of shape ``[batch, ...]``. Row i must depend only on row i of the source.
            source: One array of shape ``[batch, ...]``.
            unconnected_gradients: Has no effect except that its value is checked. An unconnected source gives zeros.
            parallel_iterations: Has no effect.
            experimental_use_pfor: As in `jacobian`.

        Returns:
            An array of shape ``[batch, *target.shape[1:], *source.shape[1:]]``.

        Raises:
            TapeError: The tape is not persistent and has already computed a gradient.
            ArgumentError: The target or source has fewer than two dimensions, or their first dimensions differ.

        Example:
            >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
            >>> with GradientTape() as tape:
            ...     tape.watch(x)
            ...     y = x * x
            >>> tape.batch_jacobian(y, x).tolist()
            [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]]

        TensorFlow: the same.
        """
        called = "GradientTape.batch_jacobian"
        UnconnectedGradients.of(unconnected_gradients)
        self._check_unused(called)
        jacobians.check_single(target, called)
        jacobians.check_batched(target, source, called)
        source = source_of(source, called)
        rows = jacobians.batched_rows(shape_of(target), target.dtype)
        (result,) = self._pull_rows(target, rows, [source], vectorized=experimental_use_pfor)
        shape = (*shape_of(target), *shape_of(source)[1:])
        if result is None:
            return jnp.zeros(shape, source.dtype)
        return jnp.reshape(jnp.moveaxis(result, 1, 0), shape)

    # Implementation

    def _check_unused(self, called: str) -> None:
        if self._used:
            raise TapeError(
                called,
                found="a second set of gradients was requested from a tape that is not persistent",
                rule="A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)",
                remedy="pass all sources in one call, or create the tape with GradientTape(persistent=True)",
            )

    @contextmanager
    def _differentiating(self) -> Iterator[Walk]:
        """Enters the context in which gradients are computed, and yields the backward pass.

        A tape that is not persistent stops recording until it is entered again. A persistent tape records the backward
        pass if it runs in the tape's own block.
        """
        recording = self._trace.recorder is not None
        if not self._persistent:
            self._used = True
            if recording:
                self._stop()
        recorded = self._persistent and recording and is_staging_above(current_trace(), self._trace) is not None
        yield Walk(self._trace, self._recorder, recorded=recorded, forget=not self._persistent)
        if not self._persistent:
            self._recorder.forget()

    def _pull(self, walk: Walk, targets: Sequence[Any], weights: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        seeds: dict[Key, Any] = {}
        for target, weight in zip(targets, weights, strict=True):
            key = self._key_of(target)
            if key is not None:
                seed = ones_like(payload_of(target_value(target))) if weight is None else weight
                seeds[key] = seeds[key] + seed if key in seeds else _initial_cotangent(seed)
        keys = [self._key_of(source) for source in sources]
        found = walk.pull(seeds, [key for key in keys if key is not None])
        results = [None if key is None else found.get(key) for key in keys]
        for target, weight in zip(targets, weights, strict=True):
            if is_variable(target) and self._key_of(target) is None:
                results = [_of_itself(target, weight, *each) for each in zip(sources, results, strict=True)]
        return results

    def _pull_rows(
        self, target: jax.Array | ReadableVariable, rows: jax.Array, sources: Sequence[Any], *, vectorized: bool
    ) -> list[Any]:
        needs_all_replicas = any(record.needs_all_replicas for record in self._recorder.records)
        with self._differentiating() as walk:
            key = self._key_of(target)
            keys = [self._key_of(source) for source in sources]
            if not is_inexact(aval_of(target_value(target))):
                return [None] * len(sources)
            if key is None:  # a variable that was not read in the block has the derivative 1 by itself
                return [rows if _is_same_variable(source, target) else None for source in sources]
            wanted = [key for key in keys if key is not None]

            def pull_row(row: jax.Array) -> dict[Key, Any]:
                return walk.again().pull({key: row}, wanted)

            found = jacobians.over_rows(pull_row, rows, vectorized=vectorized and not needs_all_replicas)
            return [None if key is None else found.get(key) for key in keys]

    def _key_of(self, value: jax.Array | ReadableVariable) -> Key | None:
        if is_variable(value):
            entry = self._recorder.variables.get(id(announced(value)))
            return None if entry is None else entry[0]
        return self._recorder.key_of(value, self._trace)


def target_value(target: jax.Array | ReadableVariable) -> Any:
    """Returns the array of a differentiation target, reading the target if it is a variable."""
    return target.read_value() if is_variable(target) else target


def _of_itself(target: Any, weight: Any, source: Any, gradient: Any) -> Any:
    """Adds the derivative of a target with respect to itself to `gradient` if `source` is the target variable."""
    if not _is_same_variable(source, target):
        return gradient
    seed = ones_like(payload_of(target.read_value())) if weight is None else _initial_cotangent(weight)
    return seed if gradient is None else gradient + seed


def _is_same_variable(source: Any, target: Any) -> bool:
    return is_variable(target) and announced(source) is announced(target)


def _initial_cotangent(weight: jax.Array) -> Any:
    """Returns an output gradient as the initial cotangent of a backward pass.

    If nothing records the backward pass, this is the plain array of a tracked one.
    """
    return payload_of(weight) if is_eval(current_trace()) else weight


def _weights(targets: Sequence[Any], structure: PyTree, output_gradients: PyTree) -> list[Any]:
    if output_gradients is None:
        return [None] * len(targets)
    output_gradients = as_stored(output_gradients, structure)
    weights = tape_leaves(output_gradients)
    if len(targets) == 1 and not isinstance(structure, (list, tuple, dict)) and not _is_leaf(output_gradients):
        # One gradient in a tuple, as in `def grad(*upstream)`, or a nested list of numbers for one array.
        weights = weights if len(weights) == 1 and _has_shape_of(weights[0], targets[0]) else [output_gradients]
    if len(weights) != len(targets):
        raise StructureError(
            "GradientTape.gradient",
            found=f"{len(weights)} output_gradients were passed for {len(targets)} targets",
            rule="output_gradients must have the structure of the target, with one per target; None means ones",
            remedy="pass one output gradient per target",
        )
    if len(targets) > 1 or isinstance(structure, dict):
        _check_names(structure, output_gradients)
    return [
        None if weight is None else _weight(weight, target) for weight, target in zip(weights, targets, strict=True)
    ]


def _check_names(targets: PyTree, output_gradients: PyTree) -> None:
    """Raises StructureError if a target and its output gradient, paired by position, have different dict keys.

    Lists and tuples may be nested in other ways, as in TensorFlow, and take the place of a dict whose keys are sorted.
    """
    names, given = _names(targets), _names(output_gradients)
    is_wrapped = len({one[:1] for one in names}) == 1  # in a dict with one key, which may be left out
    if names == given or (is_wrapped and [one[1:] for one in names] == given):
        return
    pairs = list(zip(names, given, strict=False))
    differing = next(((one, other) for one, other in pairs if one != other and one and other), None)
    if differing is None and _is_sorted(targets) and _is_sorted(output_gradients):
        return
    one, other = differing or next(((one, other) for one, other in pairs if one != other), ((), ()))
    raise StructureError(
        "GradientTape.gradient",
        found=f"the output gradient {_shown(other)} would be paired with the target {_shown(one)}",
        rule="output_gradients must have the structure of the target: JAX takes the values of a dict in the order of "
        "its sorted keys",
        remedy="pass a dict with the keys of the targets",
    )


def _names(structure: PyTree) -> list[tuple[Any, ...]]:
    """Returns, for each leaf of a pytree, the keys of the dicts that contain the leaf."""
    places = jax.tree_util.tree_flatten_with_path(structure, is_leaf=is_leaf)[0]
    return [tuple([one.key for one in path if isinstance(one, jax.tree_util.DictKey)]) for path, _ in places]


def _is_sorted(structure: PyTree) -> bool:
    positions = positions_in_order(structure, is_leaf=is_leaf)
    return positions == tuple(range(len(positions)))


def _shown(names: tuple[Any, ...]) -> str:
    return repr("/".join(map(str, names))) if names else "of a list"


def _is_leaf(value: object) -> bool:
    return not isinstance(value, (list, tuple))


def _has_shape_of(weight: Operand | None, target: jax.Array | ReadableVariable) -> bool:
    return weight is None or _shape_given(weight) == shape_of(target)


def _shape_given(weight: Operand) -> tuple[int, ...]:
    return shape_of(weight) if is_variable(weight) else np.shape(weight)


def _weight(weight: Operand, target: jax.Array | ReadableVariable) -> Any:
    if not _has_shape_of(weight, target):
        raise StructureError(
            "GradientTape.gradient",
            found=f"an output gradient has shape {_shape_given(weight)}, its target {shape_of(target)}",
            rule="an output gradient must have the shape of its target",
            remedy="broadcast it with jnp.broadcast_to, or pass one per target",
        )
    value = target_value(weight)
    dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
    if jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(target.dtype, jnp.complexfloating):
        raise StructureError(
            "GradientTape.gradient",
            found=f"an output gradient has dtype {dtype}, its target {target.dtype}",
            rule="the output gradient of a real target must be real",
            remedy="take its real part: jnp.real(gradient)",
        )
    return as_array(value, target.dtype)


def _placed_or_zeros(
    gradient: jax.Array | None, source: jax.Array | ReadableVariable, unconnected: UnconnectedGradients
) -> Any:
    if gradient is None:
        return zeros_like_source(source) if unconnected is UnconnectedGradients.ZERO else None
    if type(own := payload_of(gradient)) is Array and is_variable(source) and jax.local_device_count() > 1:
        home, here = payload_of(source.read_value()), ambient()
        # The replicas of an eager run read a plain variable on their devices, although its value is on another one.
        moves = type(home) is Array and (home.committed or here.replica is None or here.runner is None)
        if moves and home.sharding.device_set != own.sharding.device_set:
            return put_on(gradient, home.sharding)  # an outer tape may record it
    is_movable = type(source) is Array and not source.committed and ambient().replica is None
    return movable(gradient) if is_movable else gradient  # that of an eager run is on a replica's device


def unrecorded() -> ExitStack:
    """Returns a context manager that suspends all gradient tapes, for instance while variables are updated.

    Example:
        >>> import jax.numpy as jnp
        >>> from mirrored.tape import GradientTape, unrecorded
        >>> x = jnp.array(3.0)
        >>> with GradientTape() as tape:
        ...     tape.watch(x)
        ...     with unrecorded():
        ...         y = x * x
        >>> print(tape.gradient(y, x))
        None
    """
    stack = ExitStack()
    while isinstance(trace := current_trace(), TapeTrace):
        stack.enter_context(trace.under_parent())
    return stack
