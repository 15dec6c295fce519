"""Operations by what they came from: a JAX primitive with its parameters, or an operator of boxes."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import jax.numpy as jnp

from mirrored._jax.closures import custom_calls
from mirrored.tape.operation import Operation

# A user's function made anew for every step (`jax.jit(lambda ...)`) comes with a new jaxpr each time, and an operation
# keeps its compiled programs: those are few. Plain primitives are shared by everything and small.
MOST_PRIMITIVES = 4096
MOST_PROGRAMS = 256


T = TypeVar("T")


class Catalogue(Generic[T]):
    """The most recently used entries."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The entry under `key`, made if it is not there."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = make()
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        elif len(self._entries) * 2 > self._most:
            self._entries.move_to_end(key)
        return entry

    def clear(self) -> None:
        """Forgets all of them."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


@dataclasses.dataclass(frozen=True)
class LibraryCall:
    """A function of JAX's own with a derivative of its own, traced once.

    Attributes:
        operation: What it does.
        captured: Whether it closed over a value of the moment; then it must be traced again each time.
        function: The function as JAX wrapped it that time, for what its caller learns from running it.
    """

    operation: Operation
    captured: bool
    function: Any


_primitives: Catalogue[Operation] = Catalogue(MOST_PRIMITIVES)
_programs: Catalogue[Operation] = Catalogue(MOST_PROGRAMS)
_calls: Catalogue[LibraryCall] = Catalogue(MOST_PROGRAMS)


def of_primitive(primitive: Any, params: dict[str, Any]) -> Operation:
    """The operation that binds `primitive` with `params`."""
    if "donated_invars" in params:
        params = {**params, "donated_invars": (False,) * len(params["donated_invars"])}
    catalogue = _programs if "jaxpr" in params or "branches" in params else _primitives
    try:
        return catalogue.get((primitive, *params.items()), lambda: bound(primitive, params))
    except TypeError:
        return bound(primitive, params)


def bound(primitive: Any, params: dict[str, Any]) -> Operation:
    """A new operation that binds `primitive` with `params`."""
    if primitive.multiple_results:

        def apply(*args: Any) -> list[Any]:
            return list(primitive.bind(*args, **params))
    else:

        def apply(*args: Any) -> list[Any]:
            return [primitive.bind(*args, **params)]

    return Operation(apply, str(primitive), custom_calls(params))


def of_program(key: Hashable, make: Callable[[], Operation]) -> Operation:
    """The operation of a program, by whatever identifies it."""
    try:
        return _programs.get(key, make)
    except TypeError:
        return make()


def of_library_call(key: Hashable, make: Callable[[], LibraryCall]) -> LibraryCall | None:
    """A function of JAX's own, by whatever identifies it; None if nothing does (`custom_root` holds functions)."""
    try:
        hash(key)
    except TypeError:
        return None
    return _calls.get(key, make)


def clear() -> None:
    """Forgets every operation and its compiled programs (JAX's own caches are `jax.clear_caches`)."""
    for catalogue in (_primitives, _programs, _calls):
        catalogue.clear()


def _operator(function: Callable[[Any, Any], Any], name: str) -> tuple[Operation, Operation]:
    return (
        Operation(lambda left, right: [function(left, right)], name),
        Operation(lambda left, right: [function(right, left)], name),
    )


OPERATORS: dict[str, Operation] = {}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "truediv": jnp.true_divide,
    "matmul": jnp.matmul,
}
for _name, _function in _FUNCTIONS.items():
    OPERATORS[_name], OPERATORS[f"r{_name}"] = _operator(_function, _name)
NEGATIVE = Operation(lambda value: [jnp.negative(value)], "neg")
COPY = Operation(lambda value: [jnp.copy(value)], "copy")
ADD = Operation(lambda left, right: [left + right], "add cotangents")
