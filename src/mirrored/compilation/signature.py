"""Flattens the arguments of a compiled function, and computes the cache keys that select the program for a call."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from mirrored._jax.arrays import check_fit, owned, refuse_host_dtype, refuse_masked, shape_of
from mirrored._jax.boxes import Array
from mirrored._jax.placement import movable
from mirrored._jax.traces import canonical_dtype, keeps_dtype
from mirrored._jax.trees import Structure, keys_in_order, refuse_mixed_keys
from mirrored._typing import Leaf, PyTree
from mirrored.compilation.static_keys import Identity, static_key, unchanging
from mirrored.errors import ArgumentError
from mirrored.runtime.component_reads import existing_stack, stacked_of
from mirrored.values import structures
from mirrored.values.belonging import has_one_each
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica

if TYPE_CHECKING:
    from mirrored.runtime.variable_store import VariableStore
    from mirrored.topology.device_assignment import DeviceAssignment


# The types of constants in quick keys. Floats are not among them: 0.0 == -0.0, and a NaN is not equal to itself.
_PLAIN = frozenset({bool, int, str, type(None)})


class Ragged(Exception):
    """Exception for a per-replica argument whose values differ in shape, which one SPMD program cannot process."""


class RaggedWhileTracing(BaseException):
    """Exception that ends the trace of a function whose `Strategy.run` gets components that one array cannot hold.

    The components of an argument without devices are leaves: only the run shows that it needs one array of them. The
    function then runs eagerly, as one with a `Ragged` argument.

    It is not an `Exception`: user code that catches `Exception` must not handle it.
    """


def is_ragged(leaf: object) -> bool:
    """Returns whether a value is a `PerReplica` whose components are not arrays of one shape."""
    return isinstance(leaf, PerReplica) and not leaf.is_stacked and leaf.component_shape is None


def has_ragged(structure: PyTree) -> bool:
    """Returns whether a leaf of a structure is a `PerReplica` whose components are not arrays of one shape."""
    return any(map(is_ragged, structures.flatten(structure)[0]))


def one_array_of(value: PerReplica, device_assignment: DeviceAssignment, store: VariableStore) -> Any:
    """Returns a per-replica value that a trace needs as one stacked array.

    Raises:
        RaggedWhileTracing: There is no such array, and the traced function can run eagerly instead.
        ValuesError: There is no such array, as in a function that is exported.
    """
    if store.outermost().has_fallback and is_ragged(value) and not _are_lists_of_one_shape(value.values):
        raise RaggedWhileTracing
    return stacked_of(value, device_assignment)


def _are_lists_of_one_shape(components: Sequence[Any]) -> bool:
    """Returns whether components are lists or tuples of numbers and arrays, of which one array can be made."""
    if not all(isinstance(one, (list, tuple)) for one in components) or None in map(
        shape_of, jax.tree.leaves(components)
    ):
        return False
    try:
        return len(set(map(np.shape, components))) == 1
    except ValueError:  # lists of different lengths in a list
        return False


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The flattened arguments of one call of a compiled function: the arrays, the static values, and the cache key.

    Attributes:
        treedef: The structure.
        leaves: The leaves.
        dynamic: The positions of the leaves that are arrays.
        arrays: These leaves as arrays. A per-replica value is one stacked array.
        key: The arguments' part of the program's cache key: the structure, the keys of the dicts in order, and for each
            leaf the numbers of replicas, the shape and the dtype, or the static value. `Surroundings` is the rest.
        like: A pytree of this structure whose dicts have the keys in the order of the call. Only a trace needs it.
    """

    treedef: jax.tree_util.PyTreeDef
    leaves: list[Any]
    dynamic: list[int]
    arrays: list[Any]
    key: tuple[Hashable, ...]
    like: PyTree

    @property
    def order(self) -> Hashable:
        """The keys of the dicts in the arguments, in order."""
        return self.key[1]

    @property
    def leaf_keys(self) -> tuple[Hashable, ...]:
        """The cache key of each argument leaf, in the order of `leaves`."""
        return self.key[2:]

    def _with(self, leaves: list[Any]) -> Any:
        return Structure(self.treedef, self.like).unflatten(leaves)

    def rebuilt(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the call's positional and keyword arguments, with `arrays` in place of the original arrays."""
        return self._with(self._leaves_with(arrays))  # type: ignore[no-any-return]

    def _leaves_with(self, arrays: Sequence[Any]) -> list[Any]:
        leaves = list(self.leaves)
        for place, array in zip(self.dynamic, arrays, strict=True):
            old = leaves[place]
            if isinstance(old, PerReplica):
                assert old.device_assignment is not None
                leaves[place] = PerReplica.from_stacked(array, old.device_assignment, old.made_by)
            elif isinstance(old, Mirrored):
                leaves[place] = Mirrored(array, old.num_replicas)
            else:
                leaves[place] = array
        return leaves

    def of_one_replica(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns these arguments as one replica receives them, with shapes and dtypes in place of arrays."""
        leaves = list(self.leaves)
        for place, array in zip(self.dynamic, self.arrays, strict=True):
            shape = array.shape[1:] if isinstance(leaves[place], PerReplica) else array.shape
            leaves[place] = jax.ShapeDtypeStruct(shape, array.dtype)
        return self._with(leaves)  # type: ignore[no-any-return]

    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes, dtypes and weak types of the arrays."""
        return [
            jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=getattr(array, "weak_type", False))
            for array in self.arrays
        ]

    def without_arrays(self) -> Arguments:
        """Returns a copy of these arguments with shapes and dtypes in place of arrays, so that the arrays can be freed.

        A program can be traced again with it.
        """
        arrays = self.shapes()
        like = self._with([0] * len(self.leaves))
        return dataclasses.replace(self, arrays=arrays, leaves=self._leaves_with(arrays), like=like)

    def described(self) -> Arguments:
        """Returns a copy of these arguments with shapes and dtypes in place of arrays and with copied static values.

        The program cannot mutate the copies. The shapes and dtypes have no weak types.
        """
        arrays = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.arrays]
        leaves = self._leaves_with(arrays)
        for place in set(range(len(leaves))) - set(self.dynamic):
            if not isinstance(leaves[place], DistributedValues):
                leaves[place] = unchanging(leaves[place])
        return dataclasses.replace(self, arrays=arrays, leaves=leaves, like=self._with([0] * len(leaves)))


class Surroundings(NamedTuple):
    """The part of a program's cache key that does not depend on the arguments: strategies, context, and JAX settings.

    Attributes:
        strategies: The strategies in whose scope the function is called. `get_strategy()` and new variables are
            constants of the trace. These are the objects, not their ids: a new object can have the id of a deleted one.
        is_cross_replica: Whether the call is in cross-replica context. An eager run of one replica has neither a runner
            nor a store, so a call in it is not part of another program, and its trace has a replica context.
        settings: The settings on which JAX's own caches depend: x64, matmul precision, mesh, ..., without the tokens of
            tapes and replicas (`program_settings`).
    """

    strategies: Hashable
    is_cross_replica: bool
    settings: Hashable


def flatten_arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device_assignment: DeviceAssignment | None,
    function: Callable[..., Any] | None = None,
) -> Arguments:
    """Flattens a call's arguments into arrays and static values, and computes the cache key of the call's program.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.
        device_assignment: That of the current strategy.
        function: The function that is called; None if it may iterate over its keyword arguments.

    Raises:
        Ragged: A per-replica argument has components of different shapes.
    """
    code = getattr(function, "__code__", None)
    if code is not None and not code.co_flags & inspect.CO_VARKEYWORDS:  # it cannot see their order
        kwargs = dict(sorted(kwargs.items()))
    unplaced: set[int] = set()  # the components of values without devices, which may be committed to several devices

    def is_one_leaf(value: object) -> bool:  # JAX calls it for each node
        if not isinstance(value, DistributedValues):
            return value is None
        found = is_leaf(value, device_assignment)
        if isinstance(value, PerReplica) and not found:
            unplaced.update(map(id, value.values))
        return found

    try:
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs), is_leaf=is_one_leaf)
    except ValueError as error:
        refuse_mixed_keys((args, kwargs), error)
        raise
    dynamic: list[int] = []
    arrays: list[Any] = []
    # A trace may iterate over a dict, and a treedef contains neither the order of the keys nor their types.
    key: list[Hashable] = [treedef, keys_in_order((args, kwargs), static_key)]
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, PerReplica) and not leaf.is_placed and has_one_each(leaf, device_assignment):
            leaf = leaves[place] = PerReplica.of_components(leaf.values, device_assignment)
        array = _array_of(movable(leaf) if unplaced and id(leaf) in unplaced else leaf)
        if array is None:
            key.append(_static_key(leaf))
            continue
        dtype, is_weak = _type_of(array)
        if dtype.itemsize >= 8:
            _refuse_64_bits(array)
        dynamic.append(place)
        arrays.append(array)
        key.append((_layout_of(leaf), array.shape, dtype, is_weak))
    return Arguments(treedef, leaves, dynamic, arrays, tuple(key), (args, kwargs))


def is_leaf(value: object, device_assignment: DeviceAssignment | None = None) -> bool:
    """Returns whether a compiled program treats a value as a single pytree leaf.

    None and most distributed values are leaves. The leaves of a per-replica value without devices are its components,
    whose number and types then are a part of the key. Its components on all devices would be one stacked array.

    Args:
        value: A node of the pytree of arguments or results.
        device_assignment: That of the current strategy, which places a value with one component for each replica.
    """
    if not structures.is_leaf(value):
        return False
    if not isinstance(value, PerReplica) or value.is_placed:
        return True
    if device_assignment is not None and has_one_each(value, device_assignment):
        return True
    # A worker of several has only the components of its own replicas, and all workers need equal programs.
    return jax.process_count() > 1 or not jax.tree_util.all_leaves(value.values)


def steps_of(batches: Sequence[Any], steps: int | None, called: str) -> list[tuple[Any, ...]]:
    """Converts the batches passed to a call with `steps_per_call` to a list with one argument tuple per step.

    Raises:
        ArgumentError: The number of batches is not the number of steps, or `batches` is no list.
    """
    if not isinstance(batches, Sequence):
        raise ArgumentError(
            called,
            found=f"the call got an object of type {type(batches).__name__}",
            rule=f"with steps_per_call={steps} a call takes a list of {steps} batches, one per step",
            remedy=f"pass [next(iterator) for _ in range({steps})]",
        )
    if len(batches) != steps:
        raise ArgumentError(
            called,
            found=f"the call got {len(batches)} batches",
            rule=f"with steps_per_call={steps} a call takes exactly {steps} argument tuples, one per step",
            remedy=f"group the batches by {steps}, and pass a smaller remainder to a function without steps_per_call",
        )
    return [batch if isinstance(batch, tuple) else (batch,) for batch in batches]


def flatten_steps(
    steps: Sequence[tuple[Any, ...]], device_assignment: DeviceAssignment | None, called: str
) -> list[Arguments]:
    """Flattens the arguments of a call with several steps, after checking that all steps have the same signature.

    Raises:
        ArgumentError: The steps differ in their signature, or a batch has per-replica batches of different shapes.
    """
    try:
        flat = [flatten_arguments(args, {}, device_assignment) for args in steps]
    except Ragged:
        raise ArgumentError(
            called,
            found="the per-replica batches of a global batch differ in shape",
            rule="the steps of one call are one program, in which all per-replica batches must have the same shape",
            remedy="distribute the dataset with last_batch='pad', or choose a global batch size that is a multiple of "
            "the number of replicas",
        ) from None
    if any(step.order != flat[0].order for step in flat):
        raise ArgumentError(
            called,
            found="the dicts in the batches of one call have their keys in different orders or of different types",
            rule="the steps of one call repeat one program, which iterates over a dict in one order",
            remedy="create the dicts of all batches with the same keys in one order",
        )
    if any(step.key != flat[0].key for step in flat):
        raise ArgumentError(
            called,
            found="the batches of one call differ in structure, shapes, dtypes or static values",
            rule="the steps of one call repeat one program, so their batches must have the same signature",
            remedy="distribute the dataset with last_batch='pad' or 'drop', and pass numbers as arrays",
        )
    return flat


def quick_key(value: Any, arrays: list[Any]) -> Hashable:
    """Returns a cheap cache key for simple arguments (containers of arrays, integers and strings); None for others.

    It avoids flattening in the calls of a warm training loop; calls with floats or keyword arguments are flattened.
    Values with equal quick keys have equal `Arguments.key`.

    Args:
        value: A structure.
        arrays: The list to which its arrays are appended, in the order of `Arguments.arrays`.
    """
    kind = type(value)
    if kind is Array:
        arrays.append(value)
        aval = value.aval
        return (aval.shape, aval.dtype, aval.weak_type)
    if kind is PerReplica:
        device_assignment = value.device_assignment
        stacked = existing_stack(value)
        if stacked is None or device_assignment is None:
            return None
        inner = quick_key(stacked, arrays)
        return None if inner is None else (device_assignment, inner)
    if kind in _PLAIN:
        return (kind, value)
    if kind is tuple or kind is list:
        return _quick_keys(kind, value, arrays)
    if kind is dict and all(type(name) is str for name in value):
        names = sorted(value)
        inner = _quick_keys(dict, [value[name] for name in names], arrays)
        return None if inner is None else (tuple(value), inner)  # the order of the call, in which a trace iterates
    return None


def _quick_keys(kind: type, values: Sequence[Any], arrays: list[Any]) -> Hashable:
    keys: list[Hashable] = [kind]
    for value in values:
        key = quick_key(value, arrays)
        if key is None:
            return None
        keys.append(key)
    return tuple(keys)


def _array_of(leaf: Leaf) -> Any:
    """Converts a leaf of the arguments to an array; returns None for a static leaf."""
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        # A copy: JAX dispatches asynchronously and may read the buffer after the caller has refilled it.
        refuse_masked(leaf)
        refuse_host_dtype(leaf)
        check_fit(leaf)
        return owned(np.asarray(leaf, canonical_dtype(leaf.dtype)))
    if isinstance(leaf, PerReplica):
        where = leaf.device_assignment
        if where is None:
            return None
        if is_ragged(leaf):
            raise Ragged
        return stacked_of(leaf, where)
    if isinstance(leaf, Mirrored) and isinstance(leaf.value, (jax.Array, np.ndarray, np.generic)):
        return _array_of(leaf.value)
    return None


def _refuse_64_bits(array: Any) -> None:
    """Raises an error for an array of 64 bits if JAX computes in 32 bits, because XLA would refuse the program.

    Raises:
        ArgumentError: JAX has no arrays of this dtype here.
    """
    if not keeps_dtype(array.dtype):
        raise ArgumentError(
            "mirrored.function",
            found=f"an argument is an array {array.dtype}{list(array.shape)}, which was created in 64-bit mode",
            rule="outside of 64-bit mode JAX computes in 32 bits",
            remedy="make the call in `with jax.enable_x64(True):`, set jax_enable_x64 for the whole program, or pass "
            "numpy.asarray(x), which is converted",
        )


def _layout_of(leaf: Leaf) -> Hashable:
    """Returns an argument's device assignment (`PerReplica`) or number of replicas (`Mirrored`), for the cache key."""
    if isinstance(leaf, PerReplica):
        return leaf.device_assignment
    return leaf.num_replicas if isinstance(leaf, Mirrored) else None


def _type_of(array: Any) -> tuple[Any, bool]:
    if isinstance(array, jax.Array):
        return (array.dtype, getattr(array, "weak_type", False))  # random keys have none
    return (array.dtype, False)


def _static_key(leaf: object) -> Hashable:
    # All workers must trace again at the same calls, but their components may be equal to earlier ones on some only.
    if isinstance(leaf, PerReplica) and jax.process_count() == 1:
        return (type(leaf), static_key(leaf.values))
    if isinstance(leaf, Mirrored):
        return (type(leaf), static_key((leaf.value, leaf.num_replicas)))
    return (type(leaf), Identity(leaf)) if isinstance(leaf, DistributedValues) else static_key(leaf)
