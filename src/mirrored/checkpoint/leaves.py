"""Leaves: the pieces of state that a checkpoint saves, each with how it is read, checked and put back."""

from __future__ import annotations

import abc
import base64
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.host_memory import owned
from mirrored.checkpoint.places import Place, defines
from mirrored.collectives.stacked import whole_stacked
from mirrored.errors import ArgumentTypeError, LostStateError
from mirrored.values.distributed_values import PerReplica
from mirrored.variables import Variable, VariableAggregation

Undo = Callable[[], None]
_NUMBERS: Final = (bool, int, float, complex, np.generic)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A piece of state as it is saved.

    Attributes:
        kind: ``array``, ``components`` (one per replica, in the first axis), ``key`` (a random key's data), ``number``
            or ``position`` (JSON-like state of an iterator or generator).
        shape: Of arrays; of components, that of one.
        dtype: Of arrays: NumPy's name. Of keys: the implementation.
        value: The array on this host, the number, or the position. None in what is read from a manifest for arrays.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    value: Any = None

    @property
    def is_array(self) -> bool:
        """Whether it is written among the arrays."""
        return self.kind in ("array", "components", "key")

    def one(self) -> Any:
        """The value; of several components the first."""
        return self.value[0] if self.kind == "components" else self.value

    def __str__(self) -> str:
        """``float32[2, 3]``."""
        shape = f"[{', '.join(map(str, self.shape))}]"
        if self.kind == "array":
            return f"{self.dtype}{shape}"
        if self.kind == "components":
            return f"{self.dtype}{shape} for each replica"
        return f"a {self.dtype} key{shape}" if self.kind == "key" else f"a {self.kind}"


class Leaf(abc.ABC):
    """One piece of state in the program."""

    @abc.abstractmethod
    def outline(self) -> Saved:
        """What it would be saved as, without its value."""

    @abc.abstractmethod
    def read(self) -> Saved:
        """What is to be saved, with its value on this host."""

    @abc.abstractmethod
    def put(self, saved: Saved) -> Undo:
        """Puts a saved value back. Returns what undoes it."""

    @property
    @abc.abstractmethod
    def owner(self) -> int:
        """The identity of the object that the state belongs to."""

    def accepts(self, saved: Saved) -> bool:
        """Whether a saved value can be put here."""
        here = self.outline()
        # One component of several, or one value for all of them, will do.
        known = {"array", "components"}
        alike = here.kind == saved.kind or (here.kind in known and saved.kind in known)
        return alike and (here.shape, here.dtype) == (saved.shape, saved.dtype)


@dataclasses.dataclass(frozen=True)
class VariableLeaf(Leaf):
    """A variable: one value for all replicas, or one component for each where they are not one value."""

    variable: Variable

    @property
    def owner(self) -> int:
        """The variable."""
        return id(self.variable)

    @property
    def _by_component(self) -> bool:
        variable = self.variable
        return variable.per_replica and (
            variable.aggregation is VariableAggregation.NONE or variable.share_of is not None
        )

    def outline(self) -> Saved:
        """Shape and dtype."""
        kind = "components" if self._by_component else "array"
        return Saved(kind, tuple(self.variable.shape), str(np.dtype(self.variable.dtype)))

    def read(self) -> Saved:
        """The value as read in cross-replica context: a sync-on-read variable's aggregate."""
        variable = self.variable
        if not variable.per_replica:
            return dataclasses.replace(self.outline(), value=variable.on_host())
        array = (
            variable.read_value()
            if not self._by_component
            else whole_stacked(variable.stored(), variable.device_assignment)
        )
        return dataclasses.replace(self.outline(), value=on_host(array))

    def put(self, saved: Saved) -> Undo:
        """Assigns it for all replicas: a SUM is divided among them, components go to the replicas that had them."""
        variable, value = self.variable, saved.one()
        undo = self._undo()
        if self._by_component and not self._is_shared_out(saved):
            whole = saved.value if saved.kind == "components" else [value] * variable.num_replicas
            value = PerReplica(self._components(whole), variable.device_assignment)
        variable.assign(value, read_value=False)
        return undo

    def _is_shared_out(self, saved: Saved) -> bool:
        """Whether the variable itself says what each component becomes: not as many replicas had one."""
        as_many = saved.kind == "components" and len(saved.value) == self.variable.num_replicas
        return self.variable.share_of is not None and not as_many

    def _undo(self) -> Undo:
        variable = self.variable
        try:
            before = variable.stored()
        except LostStateError:
            return lambda: variable.lose("and a restore that would have given it another one failed")
        return lambda: variable.store(before)

    def _components(self, saved: Sequence[Any]) -> list[Any]:
        """The saved components for the replicas that had one (of this process); the others keep theirs."""
        variable = self.variable
        mine = variable.device_assignment.addressable_replicas
        return [
            saved[replica] if replica < len(saved) else on_host(variable.stored_component(local))
            for local, replica in enumerate(mine)
        ]


@dataclasses.dataclass(frozen=True)
class ArrayLeaf(Leaf):
    """A NumPy or JAX array that an object or container holds."""

    place: Place

    @property
    def owner(self) -> int:
        """The array."""
        return id(self.place.get())

    def outline(self) -> Saved:
        """Shape and dtype."""
        array = self.place.get()
        if is_key(array):
            return Saved("key", tuple(array.shape), str(jax.random.key_impl(array)))
        return Saved("array", tuple(array.shape), str(array.dtype))

    def read(self) -> Saved:
        """A copy of it."""
        array = self.place.get()
        data = jax.random.key_data(array) if is_key(array) else array
        return dataclasses.replace(self.outline(), value=on_host(data))

    def put(self, saved: Saved) -> Undo:
        """Into the array itself where it can be changed, else another array in its place, on the same devices."""
        place, before = self.place, self.place.get()
        if isinstance(before, np.ndarray) and before.flags.writeable:
            old = before.copy()
            before[...] = saved.one()
            return lambda: np.copyto(before, old)
        place.put(_like(before, saved))
        return lambda: place.put(before)


def _like(before: Any, saved: Saved) -> Any:
    if isinstance(before, np.ndarray):
        return np.array(saved.one(), before.dtype)
    if saved.kind == "key":
        return jax.device_put(jax.random.wrap_key_data(jnp.asarray(saved.value), impl=saved.dtype), before.sharding)
    return jax.device_put(owned(saved.one()), before.sharding)


@dataclasses.dataclass(frozen=True)
class NumberLeaf(Leaf):
    """A plain number that the checkpoint, a container or an object holds."""

    place: Place

    @property
    def owner(self) -> int:
        """What holds the number: equal numbers may be one object."""
        return id(self.place.holder())

    def outline(self) -> Saved:
        """A number."""
        return Saved("number")

    def read(self) -> Saved:
        """The number; NumPy's become Python's."""
        value = self.place.get()
        return Saved("number", value=encode(value.item() if isinstance(value, np.generic) else value, "a number"))

    def put(self, saved: Saved) -> Undo:
        """Replaces it."""
        place, before = self.place, self.place.get()
        value = decode(saved.value)
        place.put(type(before)(value) if isinstance(before, np.generic) else value)
        return lambda: place.put(before)


class HasPosition(Protocol):
    """An iterator whose position can be saved: those of `mirrored.data` and of Grain, for instance."""

    def get_state(self) -> Any:
        """The position, as JSON-like data (or bytes)."""
        ...

    def set_state(self, state: Any) -> Any:
        """Goes to a position."""
        ...


def has_position(value: Any) -> TypeGuard[HasPosition]:
    """Whether it is such an iterator."""
    return defines(value, "get_state", "set_state")


@dataclasses.dataclass(frozen=True)
class PositionLeaf(Leaf):
    """The position of an iterator."""

    iterator: HasPosition

    @property
    def owner(self) -> int:
        """The iterator."""
        return id(self.iterator)

    def outline(self) -> Saved:
        """A position."""
        return Saved("position")

    def read(self) -> Saved:
        """The position."""
        return Saved("position", value=encode(self.iterator.get_state(), type(self.iterator).__name__))

    def put(self, saved: Saved) -> Undo:
        """Goes there."""
        iterator, before = self.iterator, self.iterator.get_state()
        iterator.set_state(decode(saved.value))
        return lambda: iterator.set_state(before)


@dataclasses.dataclass(frozen=True)
class GeneratorLeaf(Leaf):
    """The state of a `numpy.random.Generator`."""

    generator: np.random.Generator

    @property
    def owner(self) -> int:
        """The generator."""
        return id(self.generator)

    def outline(self) -> Saved:
        """A position in a stream of random numbers."""
        return Saved("position")

    def read(self) -> Saved:
        """The state of its bit generator."""
        return Saved("position", value=encode(self.generator.bit_generator.state, "numpy.random.Generator"))

    def put(self, saved: Saved) -> Undo:
        """Goes on from there."""
        bits = self.generator.bit_generator
        before = bits.state
        bits.state = decode(saved.value)
        return lambda: setattr(bits, "state", before)


def leaf_of(value: Any, place: Place) -> Leaf | None:
    """The leaf that `value` is, None if it is none (or a plain number, see `is_number`)."""
    if isinstance(value, Variable):
        return VariableLeaf(value)
    if isinstance(value, jax.Array) or (isinstance(value, np.ndarray) and value.dtype.kind not in "OSUMmV"):
        return ArrayLeaf(place)
    if isinstance(value, np.ndarray) and value.dtype.kind == "V" and value.dtype.fields is None:
        return ArrayLeaf(place)  # bfloat16 and its kin
    if isinstance(value, np.random.Generator):
        return GeneratorLeaf(value)
    if has_position(value):
        return PositionLeaf(value)
    return None


def is_number(value: Any) -> bool:
    """Whether it is a plain number."""
    return isinstance(value, _NUMBERS) and not (isinstance(value, np.generic) and value.dtype.kind in "OSUMm")


def is_key(array: Any) -> bool:
    """Whether it is an array of random keys."""
    return isinstance(array, jax.Array) and bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """A copy on this host that nothing else writes to."""
    return np.array(array)


# JSON


def encode(value: Any, owner: str) -> Any:
    """JSON-like data, with what JSON lacks marked.

    Raises:
        ArgumentTypeError: Something that cannot be written so.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encode(one, owner) for key, one in value.items()}
    if isinstance(value, list):
        return [encode(one, owner) for one in value]
    if isinstance(value, tuple):
        return {"__tuple__": [encode(one, owner) for one in value]}
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"__complex__": [value.real, value.imag]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return {"__array__": value.tolist(), "dtype": str(value.dtype)}
    raise ArgumentTypeError(
        "Checkpoint.save",
        found=f"the state of {owner} holds a {type(value).__name__}",
        rule="such a state is made of None, numbers, strings, bytes, NumPy arrays, lists, tuples and dicts by strings",
        remedy="keep other things out of what get_state() returns",
    )


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__tuple__"}:
        return tuple(decode(one) for one in value["__tuple__"])
    if value.keys() == {"__bytes__"}:
        return base64.b64decode(value["__bytes__"])
    if value.keys() == {"__complex__"}:
        return complex(*value["__complex__"])
    if value.keys() == {"__array__", "dtype"}:
        return np.asarray(value["__array__"], value["dtype"])[()]
    return {key: decode(one) for key, one in value.items()}


def to_json(value: Any) -> str:
    """One line, the same for the same data."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
