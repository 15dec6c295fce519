"""Adapters by which a checkpoint reads and restores single values: variables, arrays, iterators."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_types import keeping_width, weakly_typed
from mirrored._jax.arrays import implementation_of, is_key, is_key_dtype, key_data, owned, refuse_masked
from mirrored._jax.traces import Tracer
from mirrored._typing import Array, HostArray
from mirrored.checkpoint.json_state import decode, encode
from mirrored.checkpoint.open_classes import is_open
from mirrored.checkpoint.places import Place, defines
from mirrored.checkpoint.saved import Saved
from mirrored.checkpoint.saved_numbers import array_type, is_at_most, number_of, scalar_array
from mirrored.collectives.stacked import whole_stacked
from mirrored.errors import ArgumentError, LostStateError
from mirrored.values.distributed_values import PerReplica
from mirrored.variables import Variable, VariableAggregation
from mirrored.variables.component import VariableComponent

Undo = Callable[[], None]
_KIND: Final = "bit_generator"
_SEEDS: Final = "seed_sequence"
_OF_PYTHON: Final = "random.Random"


class Leaf(abc.ABC):
    """Base class of adapters by which a checkpoint reads and restores one value of the running program."""

    @abc.abstractmethod
    def outline(self) -> Saved:
        """Returns a `Saved` without data: the kind, shape and dtype that a checkpoint would store for the value."""

    @abc.abstractmethod
    def read(self) -> Saved:
        """Copies the value to host memory, in the form that checkpoints store."""

    @abc.abstractmethod
    def put(self, saved: Saved) -> Undo:
        """Restores the value from a saved value, and returns a function that undoes the change."""

    @property
    @abc.abstractmethod
    def owner(self) -> int:
        """The Python `id` of the object that holds the value."""

    def accepts(self, saved: Saved) -> bool:
        """Returns whether a saved value has the right kind, shape and dtype to replace this value."""
        here = self.outline()
        # A single array may be restored from components, and components from a single array.
        alike = here.kind == saved.kind or (here.is_array and saved.is_array and here.is_key == saved.is_key)
        return alike and (here.shape, here.dtype) == (saved.shape, saved.dtype)


@dataclasses.dataclass(frozen=True)
class VariableLeaf(Leaf):
    """Adapter by which a checkpoint reads and restores a variable.

    The checkpoint holds one value for all replicas, or one value per replica.
    """

    variable: Variable

    @property
    def owner(self) -> int:
        """The Python `id` of the variable."""
        return id(self.variable)

    @property
    def _by_component(self) -> bool:
        variable = self.variable
        return variable.per_replica and (
            variable.aggregation is VariableAggregation.NONE or variable.share_of is not None
        )

    def outline(self) -> Saved:
        """Returns a `Saved` with the variable's shape and dtype, without the value."""
        refuse_component(self.variable, "Checkpoint")
        shape, dtype = shape_of(self.variable), self.variable.dtype
        if is_key_dtype(dtype):
            return Saved("key components" if self._by_component else "key", shape, implementation_of(dtype))
        return Saved("components" if self._by_component else "array", shape, str(np.dtype(dtype)))

    def accepts(self, saved: Saved) -> bool:
        """Returns whether a saved value can be assigned to the variable, whose unknown dimensions match any size."""
        declared = self.variable.shape
        fits = not declared.is_fully_defined() and declared.is_compatible_with(saved.shape)
        return super().accepts(dataclasses.replace(saved, shape=shape_of(self.variable)) if fits else saved)

    def read(self) -> Saved:
        """Returns the variable's value as checkpoints store it: one array, or the separate values of all replicas."""
        variable = self.variable
        if not variable.per_replica and not is_key_dtype(variable.dtype):
            return dataclasses.replace(self.outline(), value=variable.on_host())
        if self._by_component:
            return dataclasses.replace(self.outline(), value=self._every_component())
        saved = dataclasses.replace(self.outline(), value=on_host(key_data(variable.read_value())))
        return dataclasses.replace(saved, components=self._every_component()) if self._needs_every_component else saved

    @property
    def _needs_every_component(self) -> bool:
        """Whether the values of all replicas are saved: for a sync-on-read variable in a deterministic strategy."""
        variable = self.variable
        return variable.per_replica and variable.num_replicas > 1 and getattr(variable.strategy, "deterministic", False)

    def _every_component(self) -> np.ndarray[Any, Any]:
        return on_host(key_data(whole_stacked(self.variable.stored(), self.variable.device_assignment)))

    def put(self, saved: Saved) -> Undo:
        """Assigns a saved value to the variable on all replicas, and returns a function that undoes the assignment.

        The same number of replicas get the components that were saved. For another number, or without components, a
        SUM is divided among the replicas. A snapshot has no aggregate of components that waited for their variable.
        """
        variable, value = self.variable, _keys_of(saved, saved.one())
        components = saved.value if saved.kind == "components" else saved.components
        if variable.per_replica and components is not None and not self._by_component:
            if len(components) == variable.num_replicas:
                return from_components(variable, dataclasses.replace(saved, value=components))
            value = _aggregated(saved, variable.aggregation) if saved.kind == "components" else value
        undo = self.undo()
        if self._by_component and not self._is_shared_out(saved):
            whole = saved.value if saved.is_by_component else [saved.value] * variable.num_replicas
            value = PerReplica(self._components([_keys_of(saved, one) for one in whole]), variable.device_assignment)
        with keeping_width(saved.dtype):
            variable.assign(value, read_value=False)
        return undo

    def _is_shared_out(self, saved: Saved) -> bool:
        """Whether a restore divides the saved value among replicas, because the number of replicas has changed."""
        as_many = saved.is_by_component and len(saved.value) == self.variable.num_replicas
        return self.variable.share_of is not None and not as_many

    def undo(self) -> Undo:
        """Returns a function that restores the value that the variable has now."""
        variable = self.variable
        try:
            before = variable.stored()
        except LostStateError:
            return lambda: variable.lose("and a restore that would have assigned a new value failed")
        return lambda: variable.store(before, shared=True)  # readers may hold the array

    def _components(self, saved: Sequence[Any]) -> list[Any]:
        """Returns one value per replica of this process: the saved value, or the current value if none was saved."""
        variable = self.variable
        replicas = variable.device_assignment.addressable_replicas
        return [
            saved[replica] if replica < len(saved) else _movable(variable.stored_component(local))
            for local, replica in enumerate(replicas)
        ]


def _aggregated(saved: Saved, aggregation: object) -> Any:
    if aggregation not in (VariableAggregation.SUM, VariableAggregation.MEAN):
        return saved.one()
    total = saved.value.sum(0) if aggregation is VariableAggregation.SUM else saved.value.mean(0)
    return np.asarray(total).astype(saved.value.dtype)


def refuse_component(variable: object, called: str) -> None:
    """Raises an error if `variable` is an element of `Variable.values`, which is only one replica's copy of a variable.

    Raises:
        ArgumentError: It is one replica's copy of a variable.
    """
    if type(variable) is VariableComponent:
        raise ArgumentError(
            called,
            found=f"{variable.name!r} is one replica's copy of the variable {variable.container.name!r}",
            rule="a checkpoint saves variables, whose value does not depend on the number of replicas",
            remedy="pass the variable itself, which is the attribute `container` of the copy",
        )


def shape_of(variable: Variable) -> tuple[int, ...]:
    """Returns a variable's shape with None for unknown dimensions; for an unknown rank, the shape of its value."""
    shape = variable.shape
    return tuple(variable.component_shape if shape.rank is None else shape)


def from_components(variable: Variable, saved: Saved) -> Undo:
    """Assigns one saved value per replica to a sync-on-read variable; returns a function that undoes this."""
    leaf = VariableLeaf(variable)
    undo = leaf.undo()
    components = [_keys_of(saved, saved.value[replica]) for replica in variable.device_assignment.addressable_replicas]
    with keeping_width(saved.dtype):
        variable.assign(PerReplica(components, variable.device_assignment), read_value=False)
    return undo


@dataclasses.dataclass(frozen=True)
class ArrayLeaf(Leaf):
    """Adapter by which a checkpoint reads and restores a NumPy or JAX array stored in an object or container."""

    place: Place

    @property
    def owner(self) -> int:
        """The Python `id` of the array."""
        return id(self.place.get())

    def outline(self) -> Saved:
        """Returns a `Saved` with the array's shape and dtype, without the data."""
        array = self.place.get()
        if is_key(array):
            return Saved("key", tuple(array.shape), implementation_of(array.dtype))
        return Saved("array", tuple(array.shape), str(array.dtype), array_type=array_type(array))

    def accepts(self, saved: Saved) -> bool:
        """Returns whether a saved value has the right kind, shape and dtype to replace the array.

        A number can replace an array without dims, as the program has done before it saved: ``best = float(loss)``.
        """
        here = self.outline()
        is_scalar = here.kind == "array" and here.shape == ()
        if is_scalar and saved.kind == "number" and saved.dtype:
            return is_at_most(saved, here.dtype)
        return super().accepts(saved)

    def read(self) -> Saved:
        """Returns a copy of the array in host memory, in the form that checkpoints store."""
        return dataclasses.replace(self.outline(), value=on_host(key_data(self.place.get())))

    def put(self, saved: Saved) -> Undo:
        """Writes a saved value into a writeable NumPy array; replaces other arrays by new ones on the same devices."""
        place, before = self.place, self.place.get()
        if saved.kind == "number":
            place.put(number_of(saved))
            return lambda: place.put(before)
        is_numpy = isinstance(before, np.ndarray)
        if saved.shape == () and saved.array_type and is_numpy != (saved.array_type == "numpy"):
            place.put(scalar_array(saved))
            return lambda: place.put(before)
        if is_numpy and before.flags.writeable:
            old = before.copy()
            before[...] = saved.one()
            return lambda: np.copyto(before, old)
        with keeping_width(saved.dtype):
            place.put(_like(before, saved))
        return lambda: place.put(before)


def _like(before: Array | HostArray, saved: Saved) -> Any:
    """Converts a saved array to NumPy or JAX like `before`: on the same devices, and committed only if `before` is.

    An array that is committed to one device cannot be used together with variables that lie on several.
    """
    if isinstance(before, np.ndarray):
        return np.array(saved.one(), before.dtype)
    value = owned(saved.one())
    sharding = key_data(before).sharding
    if not before.committed:
        made = jnp.asarray(value)
    elif sharding.is_fully_addressable:
        made = jax.device_put(value, sharding)
    else:  # each process has the whole value, and puts its parts on its own devices
        made = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
    # Checkpoints of earlier versions lack the type of the array.
    is_weak = saved.array_type == "weak jax" if saved.array_type else getattr(before, "weak_type", False)
    return _keys_of(saved, weakly_typed(made) if is_weak else made)


def _keys_of(saved: Saved, data: Array | HostArray) -> Any:
    """Wraps `data` as typed PRNG keys if `saved` describes PRNG key data; otherwise returns `data` unchanged."""
    return jax.random.wrap_key_data(jnp.asarray(data), impl=saved.dtype) if saved.is_key else data


def _movable(component: Array | HostArray) -> Any:
    """Copies one replica's value to host memory, from where any device can receive it; leaves PRNG keys unchanged."""
    return component if is_key(component) else on_host(component)


class HasPosition(Protocol):
    """Protocol of iterators that can save and restore how far they have read, such as Grain's dataset iterators."""

    def get_state(self) -> Any:
        """Returns how far the iterator has read, as JSON-serializable data or bytes."""
        ...

    def set_state(self, state: Any) -> Any:
        """Moves the iterator to a read position that `get_state` returned."""
        ...


def has_position(value: object) -> TypeGuard[HasPosition]:
    """Returns whether `value` has `get_state` and `set_state`, like an iterator whose read position can be saved."""
    return defines(value, "get_state", "set_state")


@dataclasses.dataclass(frozen=True)
class PositionLeaf(Leaf):
    """Adapter by which a checkpoint saves and restores how far a dataset iterator has read."""

    iterator: HasPosition

    @property
    def owner(self) -> int:
        """The Python `id` of the iterator whose position this adapter saves."""
        return id(self.iterator)

    def outline(self) -> Saved:
        """Returns a `Saved` object that describes an iterator's read position but contains no data."""
        return Saved("position")

    def read(self) -> Saved:
        """Returns how far the iterator has read, in the form that checkpoints store."""
        return Saved("position", value=encode(self.iterator.get_state(), type(self.iterator).__name__))

    def put(self, saved: Saved) -> Undo:
        """Moves the iterator to a saved read position, and returns a function that undoes this."""
        iterator, before = self.iterator, self.iterator.get_state()
        return _move_undoably(iterator.set_state, decode(saved.value), before)


@dataclasses.dataclass(frozen=True)
class GeneratorLeaf(Leaf):
    """Adapter by which a checkpoint reads and restores the state of a `numpy.random.Generator` or `random.Random`.

    `Generator.spawn` derives its children from a seed sequence, which counts them and is no part of NumPy's state.
    Checkpoints of earlier versions do not have it.
    """

    generator: np.random.Generator | random.Random

    @property
    def owner(self) -> int:
        """The Python `id` of the random generator."""
        return id(self.generator)

    @property
    def _kind(self) -> str:
        generator = self.generator
        return _OF_PYTHON if isinstance(generator, random.Random) else generator.bit_generator.state[_KIND]

    def outline(self) -> Saved:
        """Returns a `Saved` with the kind of the random generator, without its state."""
        return Saved("position", dtype=self._kind)

    def accepts(self, saved: Saved) -> bool:
        """Returns whether a saved value is the state of a random generator of this kind, or one state per worker."""
        is_state = saved.kind == "position" and isinstance(saved.value, dict) and "__tuple__" not in saved.value
        return is_state and saved.value.get(_KIND, self._kind) == self._kind

    def read(self) -> Saved:
        """Returns the random generator's state, in the form that checkpoints store."""
        if isinstance(self.generator, random.Random):
            of_python = {_KIND: _OF_PYTHON, "state": self.generator.getstate()}
            return Saved("position", value=encode(of_python, type(self.generator).__name__))
        bits = self.generator.bit_generator
        state, seeds = bits.state, bits.seed_seq
        if isinstance(seeds, np.random.SeedSequence):
            state = {**state, _SEEDS: seeds.state}
        return Saved("position", value=encode(state, "numpy.random.Generator"))

    def put(self, saved: Saved) -> Undo:
        """Restores the random generator's state, and returns a function that undoes this."""
        state, generator = decode(saved.value), self.generator
        if isinstance(generator, random.Random):
            return _move_undoably(generator.setstate, state["state"], generator.getstate())
        bits: Any = generator.bit_generator  # NumPy's stubs lack `__setstate__`
        seeds = state.pop(_SEEDS, None)
        own = bits.seed_seq if seeds is None else np.random.SeedSequence(**seeds)
        # The state as of a pickled generator, with the seed sequence.
        return _move_undoably(bits.__setstate__, (state, own), (bits.state, bits.seed_seq))


@dataclasses.dataclass(frozen=True)
class RandomState:
    """The state of an object of the program's own subclass of `random.Random`, besides the object's attributes."""

    generator: random.Random


def _move_undoably(move: Callable[[Any], Any], to: object, before: object) -> Undo:
    """Calls ``move(to)``, and returns an undo function that calls ``move(before)``.

    `move` is code of the program that sets a state. It can raise after it has changed something: it then gets the
    former state.
    """
    try:
        move(to)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to raise
            move(before)
        raise
    return lambda: move(before)


def leaf_of(value: object, place: Place) -> Leaf | None:
    """Returns the checkpoint adapter for a variable, array, iterator or random generator; None for other values.

    A tracer, which the program has stored while a function was traced, has no value.
    """
    if isinstance(value, Variable):
        return VariableLeaf(value)
    if isinstance(value, Tracer):
        return None
    refuse_masked(value)
    if isinstance(value, jax.Array) or (isinstance(value, np.ndarray) and value.dtype.kind not in "OSUMmV"):
        return ArrayLeaf(place)
    if isinstance(value, np.ndarray) and value.dtype.kind == "V" and value.dtype.fields is None:
        return ArrayLeaf(place)  # bfloat16 and similar extension dtypes have kind "V"
    if isinstance(value, np.random.Generator):
        return GeneratorLeaf(value)
    if isinstance(value, RandomState):
        return GeneratorLeaf(value.generator)
    if has_position(value):
        return PositionLeaf(value)
    return GeneratorLeaf(value) if has_random_state(value) and not is_open(value) else None


def has_random_state(value: object) -> TypeGuard[random.Random]:
    """Returns whether `value` is a `random.Random`, whose state can be saved, other than that of a `SystemRandom`."""
    return isinstance(value, random.Random) and not isinstance(value, random.SystemRandom)


def on_host(array: Array | HostArray) -> np.ndarray[Any, Any]:
    """Copies an array to host memory; the copy shares no memory with the array."""
    return np.array(array)
