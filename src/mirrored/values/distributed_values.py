"""The classes of distributed values: `PerReplica` (one component per replica) and `Mirrored` (all equal).

A `PerReplica` has one of three representations:

- *stacked*: one array ``[slots, ...]``, sharded over the devices, with one row per replica (`topology.slots`). Compiled
  steps take and return it.
- *components*: one object per replica; shapes can differ. Eager runs return it.
- *local*: inside a compiled run, the components of one device's replicas. One SPMD program represents all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_likes import has_registered, register_array_like
from mirrored._jax.arrays import as_array, frozen, shape_of
from mirrored._jax.boxes import has_payload
from mirrored._jax.traces import ShapedArray, Tracer
from mirrored._typing import Leaf
from mirrored.values.attributes import attribute
from mirrored.values.base import DistributedValues as DistributedValues
from mirrored.values.base import NotAnArray, refuse
from mirrored.values.operators import ArrayOperators
from mirrored.values.provenance import Batch, Makers
from mirrored.values.reprs import outline_of, traced_repr
from mirrored.values.stacking import are_readable_here, read_tracked, stack_components, unequal_error, unstacked

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment


_NO_MAKERS: Final = Makers()
_EVEN: Final = Batch(False)
_UNEVEN: Final = Batch(True)


class PerReplica(NotAnArray):
    """A value with one component per replica; the components can differ, even in shape.

    Args:
        values: The components, in replica order; in a multi-worker job those of this process. NumPy arrays are copied,
            because the caller may write into them later; the copies are read-only.
        device_assignment: The devices of the replicas, if known.
        is_ragged: Whether components of other processes have different shapes.

    Example:
        >>> PerReplica((1.0, 2.0))
        PerReplica:{
          0: 1.0,
          1: 2.0
        }

    Attributes:
        is_placed: Whether it was made for known devices; else any strategy with as many replicas can use it.
        made_by: Its provenance: the functions passed to `run` that computed it; none if `out_specs` declares it.
        of_uneven_batch: Whether it is the result of a run whose replicas had different numbers of examples.

    TensorFlow: `tf.distribute.DistributedValues` with `.values`. The `repr` has the same form.
    """

    __slots__ = (
        "_components",
        "_device_assignment",
        "_kept",
        "_ragged",
        "_stacked",
        "is_placed",
        "made_by",
        "of_uneven_batch",
    )

    def __init__(
        self, values: Sequence[Any], device_assignment: DeviceAssignment | None = None, *, is_ragged: bool = False
    ) -> None:
        self._set(tuple(map(frozen, values)), device_assignment, is_ragged)

    def _set(self, components: tuple[Any, ...], device_assignment: DeviceAssignment | None, is_ragged: bool) -> None:
        if device_assignment is None and components:  # the values of a variable are on the variable's devices
            device_assignment = attribute(attribute(components[0], "container"), "device_assignment")
        self._components: tuple[Any, ...] | None = components
        self._stacked: jax.Array | None = None
        self._kept: jax.Array | None = None
        self._device_assignment = device_assignment
        self.is_placed = device_assignment is not None
        self._ragged = is_ragged
        self.made_by, self.of_uneven_batch = _NO_MAKERS, False

    @classmethod
    def of_components(
        cls, values: Sequence[Any], device_assignment: DeviceAssignment | None, *, is_ragged: bool = False
    ) -> PerReplica:
        """Creates a per-replica value from one value per replica without copying the values, unlike the constructor."""
        value = cls.__new__(cls)
        value._set(tuple(values), device_assignment, is_ragged)
        return value

    @classmethod
    def from_stacked(
        cls, stacked: jax.Array, device_assignment: DeviceAssignment, made_by: Makers = _NO_MAKERS
    ) -> PerReplica:
        """Creates a per-replica value from a stacked array with one row per replica slot, sharded over the devices."""
        value = cls.__new__(cls)
        value._components, value._stacked, value._kept = None, stacked, None
        value._device_assignment, value.is_placed = device_assignment, True
        value._ragged, value.made_by, value.of_uneven_batch = False, made_by, False
        return value

    @property
    def device_assignment(self) -> DeviceAssignment | None:
        """The assignment of the replicas to devices; None if unknown."""
        return self._device_assignment

    @property
    def is_stacked(self) -> bool:
        """Whether the replicas' values are stored as one stacked array, which is sharded over all devices."""
        return self._stacked is not None

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of this process's replicas, one per replica, each on its replica's device."""
        if self._stacked is not None and (tracked := read_tracked(self._stacked, self._device_assignment)) is not None:
            return tracked  # not kept: they belong to the tape
        if self._components is None or not are_readable_here(self._components, self._stacked):
            assert self._stacked is not None
            self._components = unstacked(self._stacked, self._device_assignment)
        return self._components

    def first(self) -> Any:
        """Returns the stacked array if there is one, else the first component; None if there are no components."""
        return self._stacked if self._stacked is not None else next(iter(self.values), None)

    def __len__(self) -> int:
        if self._components is not None:
            return len(self._components)
        assert self._stacked is not None
        if (
            self._device_assignment is not None
            and self._device_assignment.spans_processes
            and not isinstance(self._stacked, Tracer)
        ):
            return len(self._device_assignment.addressable_replicas)
        return self._num_rows()

    def _num_rows(self) -> int:
        """The number of rows of the stacked array that hold a replica's component; the other rows are padding."""
        assert self._stacked is not None
        if self._device_assignment is not None and self._device_assignment.is_uneven:
            return self._device_assignment.num_replicas
        return int(self._stacked.shape[0])

    @property
    def component_shape(self) -> tuple[int, ...] | None:
        """The common shape of all components; None if shapes differ or components are not arrays."""
        if self._stacked is not None:
            return tuple(self._stacked.shape[1:])
        if self._ragged:
            return None
        shapes = {shape_of(component) for component in self.values}
        return shapes.pop() if len(shapes) == 1 else None

    @property
    def _is_traced(self) -> bool:
        # Indexing a tracer is an operation: it would be recorded in the trace, or fail after the trace has ended.
        if self._stacked is not None:
            return isinstance(self._stacked, Tracer)
        return any(isinstance(component, Tracer) for component in self.values)

    def __repr__(self) -> str:
        if self._stacked is not None and self._is_traced:
            shape = self._stacked.shape[1:]
            return traced_repr("PerReplica", self._num_rows(), [f"{self._stacked.dtype}[{','.join(map(str, shape))}]"])
        if self._is_traced:
            return traced_repr("PerReplica", len(self), [outline_of(component) for component in self.values])
        return DistributedValues.__repr__(self)

    def stacked(self, device_assignment: DeviceAssignment) -> jax.Array:
        """Returns the replicas' values as one array with a row per replica slot; rows of empty slots are unspecified.

        Raises:
            ValuesError: The components are not arrays, or their shapes or dtypes differ.
        """
        if self._stacked is not None:
            return self._stacked
        if self._kept is not None:
            return self._kept
        if self._ragged:
            raise unequal_error("components whose shapes differ between workers")
        stacked: jax.Array = stack_components(self.values, device_assignment)
        # Not kept: the values of variables, which may change, the array of one of several strategies that use it, and
        # the array that a tape connects with its components. The components remain what represents the value, because
        # a tape knows them by their identity.
        if self.is_placed and not has_registered(self.values) and not any(map(has_payload, self.values)):
            self._kept = stacked
        return stacked

    def kept_stack(self) -> jax.Array | None:
        """Returns the stacked array, or the one that an earlier call of `stacked` has made of the components."""
        return self._kept if self._stacked is None else self._stacked

    def with_stacked(self, stacked: jax.Array) -> PerReplica:
        """Returns a per-replica value whose components are the rows of `stacked`, on the devices of this value."""
        assert self._device_assignment is not None
        value = PerReplica.from_stacked(stacked, self._device_assignment, self.made_by)
        value.of_uneven_batch = self.of_uneven_batch
        return value


def is_padded(value: object) -> TypeGuard[PerReplica]:
    """Returns whether a value is a `PerReplica` whose stacked array contains padding rows.

    In a pytree, the leaves of such a value are its components, without the padding.

    Tapes track the stacked array itself: a row that is taken from a tracer is another tracer each time.
    """
    if not isinstance(value, PerReplica) or not value.is_stacked:
        return False
    return value.device_assignment is not None and value.device_assignment.is_uneven


class LocalPerReplica(PerReplica):
    """A per-replica value that holds, inside a compiled `run`, one tracer for each replica on this device.

    Args:
        local: The components of this device's replicas.
        unstack: All-gathers the components of all replicas. Called at the first access to `values`.
        device_assignment: The devices of the replicas.
    """

    __slots__ = ("_unstack", "local")

    def __init__(
        self, local: Sequence[Any], unstack: Callable[[], Sequence[Any]], device_assignment: DeviceAssignment
    ) -> None:
        self.local = tuple(local)
        self._components, self._stacked, self._kept = None, None, None
        self._device_assignment, self._unstack = device_assignment, unstack
        self._ragged, self.made_by, self.of_uneven_batch, self.is_placed = False, _NO_MAKERS, False, True

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of all replicas; the first access all-gathers them."""
        if self._components is None:
            self._components = tuple(self._unstack())
        return self._components

    def __len__(self) -> int:
        assert self._device_assignment is not None
        return self._device_assignment.num_replicas

    @property
    def _is_traced(self) -> bool:
        return True

    def __repr__(self) -> str:
        # It must not access `values`, which would record an all-gather in the program.
        return traced_repr("PerReplica", len(self), [outline_of(component) for component in self.local])

    @property
    def component_shape(self) -> tuple[int, ...] | None:
        """The common shape of the components of this device's replicas; None if their shapes differ."""
        shapes = {attribute(component, "shape") for component in self.local}
        return shapes.pop() if len(shapes) == 1 else None


class Mirrored(ArrayOperators, DistributedValues):
    """A value that is equal on every replica, and that can be used like an array in expressions.

    Args:
        value: The value. A NumPy array is copied.
        num_replicas: The number of replicas that have it; in a multi-worker job those of this process.

    Example:
        >>> Mirrored(jnp.asarray(3.0), num_replicas=2) + 1
        Array(4., dtype=float32, weak_type=True)

    TensorFlow: the result of `reduce_to` and `broadcast_to`.
    """

    __slots__ = ("_value", "_num_replicas")

    def __init__(self, value: Leaf, num_replicas: int) -> None:
        self._value = frozen(value)
        self._num_replicas = num_replicas

    @property
    def value(self) -> Any:
        """The array, or other value, that every replica has."""
        return self._value

    @property
    def num_replicas(self) -> int:
        """The number of replicas of this process that have this value."""
        return self._num_replicas

    @property
    def values(self) -> tuple[Any, ...]:
        """A tuple with the value repeated once per replica of this process."""
        return (self._value,) * self._num_replicas

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the mirrored value."""
        return tuple(np.shape(self._value))

    @property
    def dtype(self) -> Any:
        """The dtype of the mirrored value."""
        return jnp.asarray(self._value).dtype

    def read_value(self) -> Any:
        """Returns the array, or other value, that every replica has."""
        return self._value

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the mirrored value as a new NumPy array; not available during tracing."""
        return np.array(self._value)


# Auxiliary data of the pytree node: the representation, the device assignment and the provenance.
_AuxData = tuple[str, "DeviceAssignment | None", Makers, Batch]


def _flatten(value: PerReplica) -> tuple[tuple[Any, ...], _AuxData]:
    batch = _UNEVEN if value.of_uneven_batch else _EVEN
    if isinstance(value, LocalPerReplica):
        return value.values, ("components", value.device_assignment, value.made_by, batch)
    # Padded rows are not visible outside: with an uneven device assignment, the leaves are the components.
    is_stacked = value._stacked is not None and not is_padded(value)
    if is_stacked or (value._stacked is None and value._components is None):  # pytree functions may put None for arrays
        return (value._stacked,), ("stacked", value.device_assignment, value.made_by, batch)
    return value.values, ("ragged" if value._ragged else "components", value.device_assignment, value.made_by, batch)


def _mirrored(num_replicas: int, children: Sequence[Any]) -> Mirrored:
    made = object.__new__(Mirrored)  # without a copy: pytree functions may put anything for the array
    made._value, made._num_replicas = children[0], num_replicas
    return made


def _unflatten(aux_data: _AuxData, children: Sequence[Any]) -> Any:
    kind, device_assignment, made_by, batch = aux_data
    if kind == "stacked":
        made = PerReplica.from_stacked(children[0], device_assignment)  # type: ignore[arg-type]
    else:
        made = PerReplica.of_components(children, device_assignment, is_ragged=kind == "ragged")
    made.made_by, made.of_uneven_batch = made_by, batch.is_uneven
    return made


jax.tree_util.register_pytree_node(PerReplica, _flatten, _unflatten)
jax.tree_util.register_pytree_node(LocalPerReplica, _flatten, _unflatten)
jax.tree_util.register_pytree_node(Mirrored, lambda m: ((m.value,), m.num_replicas), _mirrored)
register_array_like(
    Mirrored,
    read=lambda mirrored: as_array(mirrored.value),
    shape_of=lambda mirrored: ShapedArray(mirrored.shape, mirrored.dtype),
)
register_array_like(PerReplica, read=refuse("__jax_array__"), shape_of=refuse("__jax_array__"))
