"""The backward pass of a gradient tape: propagates cotangents (gradients or rows of Jacobians) in reverse order."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, SequenceKey

from mirrored._jax import caches
from mirrored._jax.boxes import payload_of
from mirrored._jax.placement import is_device_mismatch, near_first
from mirrored._jax.traces import Tracer, current_trace, is_eval
from mirrored._jax.trees import flatten_with_path, in_order_of, tree_flatten
from mirrored._typing import DTypeLike, PyTree
from mirrored.errors import ArgumentError, ArgumentTypeError, TapeError
from mirrored.runtime.ambient import ReadableVariable, ambient
from mirrored.tape import catalogue
from mirrored.tape.no_derivative import Key, NoDerivative
from mirrored.tape.operation import Operation
from mirrored.tape.record import Record, Recorder
from mirrored.tape.trace import TapeTrace, run_under
from mirrored.values.attributes import attribute, has_attribute
from mirrored.values.distributed_values import PerReplica, is_padded

# Flattens the sources and targets of gradients, which are structures of arrays and variables.


class UnconnectedGradients(enum.Enum):
    """Enum that selects None or zeros as the gradient for a source on which the target does not depend.

    Example:
        >>> UnconnectedGradients("zero") is UnconnectedGradients.ZERO
        True

    TensorFlow: `tf.UnconnectedGradients`. As in TensorFlow, the strings `"none"` and `"zero"` are also accepted.
    """

    NONE = "none"
    ZERO = "zero"

    @classmethod
    def of(cls, value: UnconnectedGradients | str) -> UnconnectedGradients:
        """Converts an enum member or its value, such as ``"zero"``, to the enum member.

        Raises:
            ArgumentError: `value` is not valid.
        """
        try:
            return cls(value)
        except ValueError:
            raise ArgumentError(
                "GradientTape.gradient",
                found=f"Unknown value for unconnected_gradients: {value!r}",
                rule="it is UnconnectedGradients.NONE (or 'none') or UnconnectedGradients.ZERO (or 'zero')",
                remedy="omit it to get None for sources on which the target does not depend",
            ) from None


def is_variable(value: object) -> TypeGuard[ReadableVariable]:
    """Returns whether `value` is a variable, recognised by its attributes `read_value` and `trainable`."""
    return has_attribute(value, "trainable") and has_attribute(value, "read_value")


def announced(variable: Any) -> Any:
    """Returns the object by which tapes identify a variable: the underlying variable if a framework has wrapped it."""
    return attribute(variable, "announced", variable)


def is_array(value: object) -> bool:
    """Returns whether `value` is an array that a gradient tape can track."""
    return isinstance(value, jax.Array)


def _has_padding(value: object) -> TypeGuard[PerReplica]:
    """Returns whether `value` is a per-replica value with padding rows, which a tape tracks as one stacked array."""
    return isinstance(value, PerReplica) and is_padded(value)


def is_leaf(value: object) -> bool:
    """Returns whether a tape treats `value` as one leaf: None, a variable, or a per-replica value with padding rows."""
    return value is None or is_variable(value) or _has_padding(value)


def tape_leaves(structure: PyTree) -> list[Any]:
    """Flattens a pytree to a list in which None and variables are leaves."""
    leaves = tree_flatten(structure, is_leaf=is_leaf)[0]
    return [leaf.first() if _has_padding(leaf) else leaf for leaf in leaves]  # `first`: the stacked array


def flatten_sources(sources: PyTree, called: str) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Flattens the sources of a gradient to a list, after checking that each is an array or a variable.

    In a registered class (an Equinox module, an optax state), the gradient of a leaf that is not an array is None. In
    lists, tuples and dicts, such a leaf is an error.

    Returns:
        The arrays and variables, and a function that unflattens results to the structure.

    Raises:
        ArgumentTypeError: A leaf of a list, tuple or dict is neither an array nor a variable.
        TapeError: A variable has no gradient that is one value (`source_of`).
    """
    leaves: list[Any]
    treedef: Any
    leaves, treedef = flatten_with_path(sources, is_leaf)
    likes = {position: leaf for position, (_, leaf) in enumerate(leaves) if _has_padding(leaf)}
    leaves = [(path, leaf.first() if _has_padding(leaf) else source_of(leaf, called)) for path, leaf in leaves]
    positions = []
    for position, (path, leaf) in enumerate(leaves):
        if is_variable(leaf) or is_array(leaf):
            positions.append(position)
        elif all(isinstance(step, (SequenceKey, DictKey)) for step in path):
            raise _not_a_source_error(leaf, path, called)

    def rebuild(results: Sequence[Any]) -> Any:
        full: list[Any] = [None] * len(leaves)
        for position, result in zip(positions, results, strict=True):
            like = None if result is None else likes.get(position)
            full[position] = result if like is None else like.with_stacked(result)
        rebuilt = in_order_of(sources, treedef.unflatten(full))
        if all(result is not None for result in results):
            return rebuilt
        # The gradient of a per-replica source without a connection is None, not a per-replica value of None.
        return jax.tree.map(
            lambda node: None if isinstance(node, PerReplica) and not jax.tree.leaves(node) else node,
            rebuilt,
            is_leaf=lambda node: isinstance(node, PerReplica),
        )

    return [leaves[position][1] for position in positions], rebuild


def source_of(leaf: Any, called: str) -> Any:
    """Checks that `leaf` can be a gradient source, and returns the source.

    The only copy of a variable is replaced by the variable. Outside of `run`, the gradient with respect to a
    sync-on-read variable is the sum over its components.

    Raises:
        TapeError: A sync-on-read variable with aggregation NONE outside of `run`, or one of several components.
    """
    leaf = whole_variable(leaf, called)
    variable: Any = announced(leaf)
    if not is_variable(leaf) or ambient().replica is not None or not getattr(variable, "per_replica", False):
        return leaf
    if getattr(variable.aggregation, "name", "") == "NONE":
        raise _component_source_error(
            called, f"the sync-on-read variable {variable.name!r} with aggregation NONE, in cross-replica context"
        )
    return leaf


def whole_variable(leaf: Any, called: str) -> Any:
    """Returns the variable of which `leaf` is the only copy; returns any other leaf unchanged.

    Raises:
        TapeError: The leaf is one of several components.
    """
    container = attribute(leaf, "container") if is_variable(leaf) else None
    if container is None:
        return leaf
    if container.num_replicas > 1:
        raise _component_source_error(called, f"{leaf.name!r}, the copy of one replica (an element of variable.values)")
    return container


def _component_source_error(called: str, found: str) -> TapeError:
    return TapeError(
        called,
        found=f"a source is {found}",
        rule="a tape records reads of the variable, not of one replica's copy; outside of run a gradient must be one "
        "value, and a variable whose components are not aggregated has one gradient per replica",
        remedy="open the tape and call gradient inside the function given to run, with the variable as the source: "
        "each replica gets the gradient with respect to its own component; or give the variable an aggregation",
    )


def refuse_padded(structure: PyTree, called: str) -> None:
    """Raises an error for a per-replica value with padding rows, because a Jacobian would contain the padding.

    Raises:
        ArgumentTypeError: The structure contains such a value.
    """
    if any(_has_padding(leaf) for leaf in jax.tree.leaves(structure, is_leaf=is_leaf)):
        raise ArgumentTypeError(
            called,
            found="a per-replica value of a strategy whose number of devices does not divide its number of replicas",
            rule="with respect to such a value, only gradients can be computed, not Jacobians",
            remedy="compute the derivatives inside the replica function, or with respect to one of value.values",
        )


def flatten_targets(target: PyTree, called: str) -> list[Any]:
    """Flattens the targets of a gradient to a list, after checking that each is an array or a variable.

    Raises:
        ArgumentTypeError: A target is neither an array nor a variable.
    """
    if target is None:
        raise ArgumentTypeError(
            called,
            found="the target is None",
            rule="a target must be an array, a variable or a structure of them, computed in the tape's block",
            remedy="check that the function that computes the target also returns it",
        )
    leaves = tape_leaves(target)
    for leaf in leaves:
        if not (is_variable(leaf) or is_array(leaf)):
            raise ArgumentTypeError(
                called,
                found=f"a target is {_shown(leaf)}",
                rule="targets must be arrays and variables, or structures of them",
                remedy="compute the target with jax.numpy in the tape's block",
            )
    return leaves


def zeros_like_source(source: jax.Array | ReadableVariable) -> jax.Array:
    """Returns zeros with the shape and dtype of a source (an array or a variable)."""
    return jnp.zeros(shape_of(source), source.dtype)


def shape_of(value: jax.Array | ReadableVariable) -> tuple[int, ...]:
    """Returns the shape of an array or of a variable's value; a variable's declared shape may have unknown sizes."""
    shape = getattr(value, "component_shape", None)
    return tuple(value.shape if shape is None else shape)


def _not_a_source_error(leaf: object, path: tuple[Any, ...], called: str) -> ArgumentTypeError:
    where = jax.tree_util.keystr(path)
    return ArgumentTypeError(
        called,
        found=f"the source{' at ' + where if where else ''} is {_shown(leaf)}",
        rule="sources must be arrays and variables, or structures of them",
        remedy="pass the array that the tape watches, or the variable; omit values that have no gradient",
    )


def _shown(leaf: object) -> str:
    return "None" if leaf is None else f"{leaf!r} of type {type(leaf).__name__!r}"


# The backward pass: visits a tape's records in reverse order and accumulates cotangents.


class Walk:
    """One backward pass over the operations of a tape, in reverse order; it accumulates cotangents (gradients).

    Args:
        owner: The trace of the tape.
        recorder: The records and watched values of the tape.
        recorded: Whether the tape records the backward pass, as a persistent tape does inside its own block.
        forget: Whether each record is dropped after its use, which frees its residuals early.
    """

    def __init__(self, owner: TapeTrace, recorder: Recorder, *, recorded: bool, forget: bool) -> None:
        self._owner = owner
        self._recorder = recorder
        self._recorded = recorded
        self._forget = forget
        self._trace = current_trace()
        # Values whose gradient would be incomplete. Requesting one of them is an error.
        self._lost: dict[Key, NoDerivative] = {}
        # The residuals of an outermost eager tape are plain arrays, so no trace needs to see the operations on them.
        self._direct = is_eval(self._trace) and owner.eager

    def again(self) -> Walk:
        """Returns a second backward pass over the same records of the tape, for use under `jax.vmap`.

        The new pass keeps the tape's records, and belongs to the JAX trace that is current now. Under `jax.vmap`, which
        computes the rows of a Jacobian, that is not the trace of the first pass.
        """
        return Walk(self._owner, self._recorder, recorded=self._recorded, forget=False)

    def pull(self, seeds: dict[Key, Any], wanted: Iterable[Key]) -> dict[Key, Any]:
        """Computes the cotangents (gradients) of the sources from the cotangents of the targets.

        Args:
            seeds: The cotangents of the targets.
            wanted: The keys of the sources.

        Returns:
            The cotangents by key, without the keys that no cotangent reaches.

        Raises:
            TapeError: A wanted cotangent depends on an operation without a derivative.
        """
        cotangents, keep = dict(seeds), frozenset(wanted)
        self._lost = {}
        # The backward pass is not part of the tape, so JAX's cached traces are shared with code outside of tapes.
        with caches.using(None) if is_eval(self._trace) else nullcontext():
            for record in self._records():
                self._step(record, cotangents, keep)
        for key in keep:
            if key in self._lost:
                raise self._lost[key].error()
        return {key: cotangents[key] for key in keep if key in cotangents}

    def _records(self) -> Iterable[Record]:
        records = self._recorder.records
        if not self._forget:
            yield from reversed(records[:])
            return
        while records:
            yield records.pop()

    def _step(self, record: Record, cotangents: dict[Key, Any], keep: frozenset[Key]) -> None:
        if self._lost:
            self._propagate_missing_derivatives(record)
        present = [None if key is None else _take(cotangents, key, keep) for key in record.out_keys]
        if not record.needs_all_replicas and all([cotangent is None for cotangent in present]):
            return
        no_derivative = record.no_derivative
        if no_derivative is not None:
            self._lost.update((key, no_derivative) for key in no_derivative.keys if key not in self._lost)
        pull = record.pull_recorded if self._recorded else record.pull
        for position, cotangent in pull(present, self._run):
            key = record.in_keys[position]
            earlier = cotangents.get(key)
            cotangents[key] = cotangent if earlier is None else self._added(earlier, cotangent)

    def _propagate_missing_derivatives(self, record: Record) -> None:
        """Marks the inputs of an operation as non-differentiable if one of its results is non-differentiable."""
        on_results = [None if key is None else self._lost.get(key) for key in record.out_keys]
        found = next((one for one in on_results if one is not None), None)
        if found is None:
            return
        reached = record.reached(tuple([one is not None for one in on_results]))
        behind = [record.in_keys[position] for position in reached]
        if record.no_derivative is not None:
            behind += record.no_derivative.keys
        self._lost.update((key, found) for key in behind if key not in self._lost)

    def _added(self, first: jax.Array, second: jax.Array) -> Any:
        try:
            return self._run(catalogue.ADD, [first, second])[0]
        except ValueError:
            # Under a tape around an eager run, the cotangents of a variable are on the devices of the replicas that
            # read it. The sum is computed on the device of the first one.
            if isinstance(payload_of(first), Tracer):
                raise _several_devices_error() from None
            return self._run(catalogue.ADD, [first, jax.device_put(second, payload_of(first).sharding)])[0]

    def _run(self, operation: Operation, values: Sequence[Any]) -> Sequence[Any]:
        try:
            return operation.jitted(*values) if self._direct else run_under(self._trace, operation, values)
        except ValueError as error:
            moved = near_first(values) if is_device_mismatch(error) else None
            if moved is None:
                raise
        # The forward pass has combined arrays of several devices that are not committed to them: JAX copied them there,
        # and the cotangents go back to where the residuals are.
        return operation.jitted(*moved) if self._direct else run_under(self._trace, operation, moved)


def _several_devices_error() -> TapeError:
    return TapeError(
        "GradientTape.jacobian",
        found="several replicas of an eager run read one variable, so its cotangents are on different devices",
        rule="jax.vmap, which computes all rows at once, cannot add cotangents on different devices",
        remedy="pass experimental_use_pfor=False, or compile the whole step with mirrored.function, on per-replica "
        "batches of equal shapes (last_batch='pad' or 'drop'): a step on others runs eagerly",
    )


def _take(cotangents: dict[Key, Any], key: Key, keep: frozenset[Key]) -> Any:
    return cotangents.get(key) if key in keep else cotangents.pop(key, None)


# Jacobians: runs one backward pass per element of a target, vectorized or one after another.


def check_single(target: object, called: str) -> None:
    """Raises an error unless the target of a Jacobian is a single array.

    Raises:
        ArgumentTypeError: It is not a single array.
    """
    if not (is_array(target) or is_variable(target)):
        raise ArgumentTypeError(
            called,
            found=f"the target is of type {type(target).__name__!r}",
            rule="the target of a Jacobian must be one array",
            remedy="call it once per array (on a persistent tape), or stack the arrays into one",
        )


def check_batched(target: jax.Array | ReadableVariable, source: jax.Array | ReadableVariable, called: str) -> None:
    """Raises an error unless a target and a source have batch dimensions of equal size.

    Raises:
        ArgumentError: A shape has fewer than two dimensions, or the first dimensions differ.
    """
    for name, shape in (("target", shape_of(target)), ("source", shape_of(source))):
        if len(shape) < 2:
            raise ArgumentError(
                called,
                found=f"for the {name}, Shape {shape} must have rank at least 2",
                rule="target and source must have a batch dimension and at least one other dimension",
                remedy="use jacobian, or add a dimension with x[:, None]",
            )
    if shape_of(target)[0] != shape_of(source)[0]:
        raise ArgumentError(
            called,
            found=f"the target has shape {shape_of(target)}, the source {shape_of(source)} (Need first dimension of "
            "target shape and source shape to match)",
            rule="target and source must have the same number of rows, one for each element of the batch",
            remedy="use jacobian if a row of the target depends on several rows of the source",
        )


def rows(shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Returns the stacked one-hot cotangents that give the rows of a Jacobian, one per element of the target."""
    size = math.prod(shape)
    return jnp.reshape(jnp.eye(size, dtype=dtype), (size, *shape))


def batched_rows(shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Returns the stacked one-hot cotangents that give the rows of a per-example Jacobian.

    Each cotangent is 1 at its element in all examples.
    """
    size = math.prod(shape[1:])
    one = jnp.reshape(jnp.eye(size, dtype=dtype), (size, 1, *shape[1:]))
    return jnp.broadcast_to(one, (size, *shape))


def over_rows(pull: Callable[[Any], dict[Key, Any]], cotangents: jax.Array, *, vectorized: bool) -> dict[Key, Any]:
    """Applies the function `pull` to each row of `cotangents`, by `jax.vmap` or in a loop, and stacks the results.

    Args:
        pull: Maps a cotangent to the cotangents of the sources, by key.
        cotangents: The rows.
        vectorized: Whether `jax.vmap` computes all rows at once.

    Returns:
        For each key an array with an additional leading dimension.
    """
    if vectorized or cotangents.shape[0] == 0:
        found: dict[Key, Any] = jax.vmap(pull)(cotangents)
        return found
    pulled = [pull(row) for row in cotangents]
    return {key: jnp.stack([one[key] for one in pulled]) for key in pulled[0]}
