"""Defines `VariableStorage`, which holds a variable's value on the replicas' devices, and helpers that place values."""

from __future__ import annotations

import abc
import itertools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import caches
from mirrored._jax.array_types import keeping_width_of
from mirrored._jax.arrays import aligned_empty, copied, is_key, is_ready, new_array
from mirrored._jax.boxes import Array
from mirrored._jax.placement import movable
from mirrored._jax.traces import Tracer, eager
from mirrored._typing import Operand
from mirrored.errors import LostStateError
from mirrored.runtime.ambient import ambient
from mirrored.values.tensor_shape import TensorShape
from mirrored.variables.creation import Awaiting
from mirrored.variables.former import forget_computed, restore_failed
from mirrored.variables.state_lock import finish_step, lock, note_former, note_pending, state, thread

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment


# Places values of variables: on all devices of the strategy, or on JAX's default device for plain variables.


def placed(value: Any, device_assignment: Any, per_replica: bool) -> Any:
    """Copies a value to all devices of a variable, or stacks one copy per replica if the variable is sync-on-read.

    Args:
        value: ``[...]``.
        device_assignment: The devices of the replicas; None for a plain variable.
        per_replica: Whether each replica has its own component.

    Returns:
        ``[...]``, or ``[slots, ...]`` if per replica.
    """
    with eager(), caches.using(None), keeping_width_of([value]):
        if device_assignment is None:
            return jnp.asarray(value)
        if per_replica:
            whole = (device_assignment.slots.count, *np.shape(value))
            if device_assignment.spans_processes:
                local_values = (jnp if is_key(value) else np).broadcast_to(
                    _as_numpy(value), (device_assignment.local, *np.shape(value))
                )
                return _global_array(device_assignment, whole, device_assignment.sharded, local_values)
            return jax.device_put(_repeated(value, whole), device_assignment.sharded)
        if device_assignment.spans_processes and getattr(value, "is_fully_addressable", True):
            return _global_array(device_assignment, np.shape(value), device_assignment.replicated, _as_numpy(value))
        return jax.device_put(value, device_assignment.replicated)


def placed_by(value: jax.Array, sharding: jax.sharding.Sharding) -> Any:
    """Copies a value to the devices of a sharding, whatever is being traced."""
    with eager(), caches.using(None), keeping_width_of([value]):
        return jax.device_put(value, sharding)


def _repeated(value: Any, shape: tuple[int, ...]) -> Any:
    """Returns a new array of the given shape, all rows of which equal `value`."""
    if is_key(value):
        return jnp.broadcast_to(value, shape)
    own = np.asarray(value)
    rows = aligned_empty(shape, own.dtype)
    rows[...] = own
    return rows


def _as_numpy(value: object) -> Any:
    """Converts a value to a NumPy array; returns PRNG keys unchanged, because NumPy cannot hold them."""
    return value if is_key(value) else np.asarray(value)


def _global_array(
    device_assignment: DeviceAssignment, shape: tuple[int, ...], sharding: jax.sharding.Sharding, part: Operand
) -> jax.Array:
    """Builds a global array in which every device's shard is `part`; all processes must call the function."""
    # `jax.device_put` to devices of several processes compares the values, with one collective per array.
    parts = [jax.device_put(part, device) for device in device_assignment.addressable_devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def components(whole: jax.Array, device_assignment: DeviceAssignment, per_replica: bool) -> tuple[Any, ...]:
    """Splits a variable's stored value into one array per replica of this process, each on its replica's device."""
    by_device = {shard.device: shard.data for shard in whole.addressable_shards}
    shards = [
        (by_device[device], device_assignment.replicas_on(device)) for device in device_assignment.addressable_devices
    ]
    if per_replica:
        return tuple(shard[k] for shard, own in shards for k in range(len(own)))
    return tuple(shard for shard, own in shards for _ in own)


def on_replica_devices(value: Operand, device_assignment: DeviceAssignment | None) -> Any:
    """Copies an array to the devices of all replicas.

    There it can be combined with values of variables. It is returned unchanged for a plain
    variable, if it is there already, and if it is not committed to devices.
    """
    if device_assignment is None or not is_committed(value):
        return value
    if value.sharding.device_set == set(device_assignment.devices) and value.sharding.is_fully_replicated:
        return value
    return placed(value, device_assignment, per_replica=False)


def near(value: Any, other: Any) -> Any:
    """Moves an array to the device of the array `other`, so that the two can be combined.

    The array is returned unchanged if `other` is None or a tracer, or if it is not committed to a device.
    """
    if (
        other is None
        or isinstance(other, Tracer)
        or not is_committed(value)
        or value.sharding.device_set == other.sharding.device_set
    ):
        return value
    return jax.device_put(value, other.device)


def donatable(value: object) -> Any:
    """Returns a copy of an array in a new buffer that a compiled step may donate to XLA."""
    if isinstance(value, Tracer):
        return value
    with eager():
        return new_array(value)


def uncommitted(value: Any) -> Any:
    """Returns a copy of an array that is not committed to a device, so that JAX may move it to any device."""
    if is_key(value):  # NumPy cannot hold typed keys
        return jax.random.wrap_key_data(uncommitted(jax.random.key_data(value)), impl=jax.random.key_impl(value))
    with keeping_width_of([value]):
        return jnp.asarray(np.array(value))


def is_committed(value: object) -> bool:
    """Returns whether a value is an array that is committed to devices, so that JAX does not move it."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and bool(value.committed)


_serials = itertools.count()


MADE_ALONE: Final = " (made by each worker)"


def distinct_names(variables: Iterable[VariableStorage], alone: str = "") -> dict[int, str]:
    """Returns a dict from the `id` of each variable to a unique name that is the same on all workers.

    Variables that share a name are numbered. For a variable that all workers have created together, the number is its
    `number_of_name`, whatever other variables a worker passes. All others are numbered in the order of their creation.
    `serial` itself can differ between workers: it also counts the variables that a worker creates alone.

    Args:
        variables: The variables.
        alone: What is appended to the names of variables that a worker has created alone, so that they are not those of
            variables that another worker passes.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()
    for variable in sorted(variables, key=lambda one: (one.number_of_name is None, one.serial)):
        number, end = (1, alone) if variable.number_of_name is None else (variable.number_of_name, "")
        while (name := _with_number(variable.common_name + end, number)) in taken:
            number += 1
        taken.add(name)
        names[id(variable)] = name
    return names


def _with_number(name: str, number: int) -> str:
    return name if number == 1 else f"{name} (number {number} of this name)"


class VariableStorage(Awaiting):
    """Base class of `Variable` that stores the variable's value on the devices.

    Variable stores and compiled functions use its methods.

    Attributes:
        name: The name, for messages.
        device_assignment: The devices of the replicas; None for a plain variable.
        per_replica: Whether every replica has its own component (ON_READ, in a strategy).
        num_replicas: The number of replicas that have a copy; 1 for a plain variable.
        component_shape: The shape of one copy or component of the value.
        dtype: The dtype.
        serial: A number that is larger for variables that were created later.
        numbered: Whether the name is generated, with the number of unnamed variables that the process has created.
        number_of_name: The number, from 1, of the variable among those of its common name that all workers of the job
            have created together; None for a variable that a worker has created alone.
    """

    name: str
    device_assignment: Any  # `DeviceAssignment`, or None; most callers have excluded plain variables
    strategy: Any  # `Strategy`, whose package imports this one, or None
    per_replica: bool
    num_replicas: int
    component_shape: tuple[int, ...]
    dtype: Any
    serial: int
    numbered = False
    number_of_name: int | None = None
    is_random_state = False
    """Whether it is the state of a random generator that is no stream of `tf.random`."""

    @property
    def common_name(self) -> str:
        """The variable's name, or "Variable" for a generated name, whose number can differ between workers."""
        return "Variable" if self.numbered else self.name

    @property
    @abc.abstractmethod
    def shape(self) -> TensorShape:
        """The variable's declared shape, with None for dimensions that assignments may change."""

    def may_become(self, shape: tuple[int, ...]) -> bool:
        """Returns whether an assignment may change the shape of the variable's value to `shape`.

        It may in eager code, if the declared shape has unknown dimensions and is compatible with `shape`.
        """
        declared, store = self.shape, ambient().store
        if declared.is_fully_defined() or not declared.is_compatible_with(shape):
            return False
        return store is None or not store.captures

    def hold(self, array: jax.Array) -> None:
        """Sets the initial stored value of a new variable."""
        # A step replaces `_array` from C and cannot reset other attributes at the same time. So facts about a value
        # (`_lost`, `_components`) are stored with the array that they describe, and are valid only while `_array` is
        # that array. `_shared` is not: only `taken` and `store` reset it. That it stays set for the new array of a step
        # costs one unnecessary copy. Code that stores arrays that other code also holds marks the variable, and relies
        # on it (`EagerRunner.commit`, `state_lock.with_storage_rollback`, `former.restore_failed`,
        # `Program._call_recorded`).
        self._array: Any = array
        self.serial = next(_serials)
        self._lost: tuple[Any, str] | None = None
        self._components: tuple[Any, tuple[Any, ...]] | None = None
        self._shared = False
        self._sound: Any = lambda: None  # a weak reference to the value, once it is known to be computed

    def stored(self) -> Any:
        """Returns the variable's stored array: the mirrored value, or a stacked array with one row per replica.

        It marks the value as shared, so that a step that donates the buffer copies it first.

        Raises:
            LostStateError: The value is lost: a step that owned its buffer failed.
        """
        if self._withheld is not None:
            self.supply_value()
        while True:
            self._shared = True  # before the check of `state.step`: a step that begins now finds the mark
            version = state.version
            if state.step is None:
                array = self._array
                # A step that began after the first check may have replaced the marked value by its own copy.
                if state.step is None and state.version == version:
                    if self._sound() is not array:
                        self._check_sound(array)
                    self._check_kept()
                    return array
            finish_step()

    def detached(self, value: jax.Array) -> Any:
        """Returns a value that was read from the variable: of a plain variable, an array that JAX may move.

        A compiled run commits the value to its devices. The array shares the buffer of the first of them.
        """
        if self.device_assignment is not None or type(value) is not Array or not value.committed:
            return value
        found = self._components
        if found is None or found[0] is not value:
            if not value.is_fully_replicated:
                return value
            found = self._components = (value, (movable(value.addressable_data(0)),))
        return found[1][0]

    def borrowed(self) -> Any:
        """Returns the variable's stored array without marking it as shared, for use only while the state lock is held.

        A step that runs later may donate the array.
        """
        self._check_kept()
        return self._array

    def taken(self) -> Any:
        """Replaces the stored value by a copy in a new buffer, and returns the copy, which may be donated.

        No other code holds the copy. The caller holds the state lock.
        """
        self._check_kept()
        self._array = own = copied(self._array)
        self._components, self._shared = None, False
        return own

    def on_host(self) -> np.ndarray[Any, Any]:
        """Returns the variable's stored array, with the values of all replicas, as a new NumPy array.

        It does not mark the value as shared. Only a step that is dispatched during the copy has to copy the buffer.
        """
        if self._withheld is not None:
            self.supply_value()
        key = object()
        try:
            state.reading[key] = self
            while True:
                version = state.version
                if state.step is None:
                    array = self._array
                    if state.step is None and state.version == version:
                        self._check_kept()
                        return self._without_padding(self._copied(array))
                finish_step()
        finally:
            state.reading.pop(key, None)

    def _copied(self, array: Any) -> np.ndarray[Any, Any]:
        try:
            value = np.array(array)
        except RuntimeError as error:
            self._lose_failed(array, error)
            raise
        forget_computed()
        return value

    def _check_sound(self, array: Any) -> None:
        """Marks a value as lost if the step that computes it has failed; does not wait for the step.

        JAX reports an error of a step only where its results are used.
        """
        if isinstance(array, Tracer) or not hasattr(array, "is_ready") or not is_ready(array):
            return
        try:
            array.block_until_ready()
        except RuntimeError as error:
            self._lose_failed(array, error)
        else:
            self._sound = weakref.ref(array)
            forget_computed()

    def _lose_failed(self, array: Any, error: RuntimeError) -> None:
        """Marks the value as lost, and raises `LostStateError`; does nothing if another thread has donated the array.

        If the old value is kept (`variables.former`), the variable gets it back instead, and the error is raised once.
        """
        if array.is_deleted():
            return
        if restore_failed() and self._array is not array:
            error.add_note(f"{self.name} has its value from before the failed computation again")
            raise error
        with lock:
            if self._array is array and not self.is_lost:
                self.lose(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
        if self.is_lost:
            try:
                self._check_kept()
            except LostStateError as lost:
                raise lost from error

    def _without_padding(self, whole: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        is_padded = self.per_replica and self.device_assignment is not None
        return np.asarray(self.device_assignment.slots.rows(whole)) if is_padded else whole

    def _check_kept(self) -> None:
        if self.is_lost:
            assert self._lost is not None
            raise LostStateError(
                f"reading {self.name}",
                found=f"its value was to be computed by a step that failed: {self._lost[1]}",
                rule="a compiled step reuses the memory of its variables, so an error while it runs loses their values",
                remedy="restore a checkpoint (or assign a new value); function(donate=False) keeps the old values",
            )

    @property
    def is_lost(self) -> bool:
        """Whether the variable has lost its value, because the step that was to compute it has failed."""
        return self._lost is not None and self._lost[0] is self._array

    @property
    def is_deterministic(self) -> bool:
        """Whether programs with the variable must have the same bits on any number of devices."""
        return self.device_assignment is not None and self.strategy.cross_device_ops.requires_bit_identity

    def stored_shape(self) -> tuple[int, ...]:
        """Returns the shape of the stored value, including the leading axis of a stacked value."""
        if not self.per_replica:
            return self.component_shape
        rows = 1 if self.device_assignment is None else self.device_assignment.slots.count
        return (rows, *self.component_shape)

    def stored_component(self, replica: int) -> Any:
        """Returns one replica's stored copy of the variable, on that replica's device."""
        whole = self.stored()
        if self.device_assignment is None:
            return whole
        found = self._components
        if found is None or found[0] is not whole:
            with eager():  # the kept components are arrays, even if a jitted function reads them first
                found = self._components = (whole, components(whole, self.device_assignment, self.per_replica))
        return found[1][replica]

    def store(self, value: object, *, shared: bool = False) -> None:
        """Replaces the variable's whole stored value.

        Args:
            value: The value, in the form in which it is stored.
            shared: Whether other code also holds its buffers.
        """
        self.before_write()
        if thread.kept_back is not None:
            thread.kept_back.append((self, value, shared))
            return
        with lock:
            if state.step is not None:
                finish_step()
            note_pending((self,), (value,))
            if thread.before is not None:
                note_former((self,))
            self.release()
            state.version += 1
            self._array, self._components, self._shared = value, None, shared

    @property
    def is_shared(self) -> bool:
        """Whether code other than the variable may hold the value's device buffers."""
        return self._shared

    def mark_shared(self) -> None:
        """Records that other code holds the value's device buffers, so that compiled steps donate copies instead."""
        self._shared = True

    def lose(self, why: str) -> None:
        """Marks the variable's value as lost, because the step that was to compute it has failed.

        It also marks the value as shared. A donating step reads `_array` directly and does not check `is_lost`, but it
        copies shared values by `taken`, which raises `LostStateError`.
        """
        self._lost, self._components, self._shared = (self._array, why), None, True
