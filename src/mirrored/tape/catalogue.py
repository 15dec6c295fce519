"""Caches the operations that tapes record, so that no step derives their VJP rules or compiles them again.

The keys are primitives, traced programs or library functions. An `Operation` holds its derived rules and compiled
programs. Finding the same operation again avoids tracing and compiling in every step.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax.numpy as jnp

from mirrored._jax.bit_identical import without_compiler_options
from mirrored._jax.caches import for_this_trace
from mirrored._jax.closures import custom_calls
from mirrored.tape.operation import Operation

if TYPE_CHECKING:
    from mirrored._jax.jaxprs import Primitive

# A function that the user creates anew in every step (`jax.jit(lambda ...)`) has a new jaxpr each time. Its operation
# keeps compiled programs alive, so the limit for programs is low. Operations of plain primitives are small.
MOST_PRIMITIVES = 4096
MOST_PROGRAMS = 256


T = TypeVar("T")


class Catalogue(Generic[T]):
    """A cache of limited size: when the cache is full, a new entry replaces an old one.

    A lookup refreshes its entry only when the cache is more than half full, which makes most lookups cheaper.

    Args:
        most: The maximum number of entries.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the cached entry of `key`; creates it with `make` if it is missing."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = make()
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        elif len(self._entries) * 2 > self._most:
            self._entries.move_to_end(key)
        return entry

    def clear(self) -> None:
        """Removes all entries of this cache."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


@dataclasses.dataclass(frozen=True)
class LibraryCall:
    """A call of a JAX library function with a custom derivative rule (such as `jax.nn.relu`), traced once.

    Attributes:
        operation: The operation.
        captured: Whether the function closed over a traced value. The operation then must not be reused.
        function: JAX's wrapper of the function from the traced call. Its stores hold what its caller reads after
            running it, such as output trees.
    """

    operation: Operation
    captured: bool
    function: Any


_primitives: Catalogue[Operation] = Catalogue(MOST_PRIMITIVES)
_programs: Catalogue[Operation] = Catalogue(MOST_PROGRAMS)
_calls: Catalogue[LibraryCall] = Catalogue(MOST_PROGRAMS)


def _of_this_trace(catalogue: Catalogue[T]) -> Catalogue[T]:
    """Returns the cache of operations to use: a temporary one while a function is compiled, else `catalogue`.

    Other traces do not share the nested jaxprs of the trace (`caches.fresh`), so the jaxprs' operations are not found
    again when it has ended. The catalogue of the process would keep up to `MOST_PROGRAMS` of them alive.
    """
    own = for_this_trace(id(catalogue), lambda: Catalogue[T](MOST_PROGRAMS))
    return catalogue if own is None else own


def of_primitive(primitive: Primitive, params: dict[str, Any]) -> Operation:
    """Returns the cached differentiable operation that applies a JAX primitive with given parameters.

    Donation is disabled, because the records may still need the operands as residuals. Parameters that are not hashable
    give a new operation.
    """
    if "donated_invars" in params:
        params = {**params, "donated_invars": (False,) * len(params["donated_invars"])}
    catalogue = _of_this_trace(_programs) if "jaxpr" in params or "branches" in params else _primitives
    try:
        return catalogue.get((primitive, *params.items()), lambda: bound(primitive, params))
    except TypeError:
        return bound(primitive, params)


def bound(primitive: Primitive, params: dict[str, Any]) -> Operation:
    """Creates a differentiable operation that applies a JAX primitive with given parameters; does not cache it.

    Compiler options among the parameters show that the primitive is a bit-identical program (`BitIdenticalJit`). JAX
    refuses them in a nested `jit`, so the operation compiles its forward and backward programs with them instead.
    """
    nested = without_compiler_options(params)
    bit_identical, params = nested is not params, nested
    if primitive.multiple_results:

        def apply(*args: Any) -> list[Any]:
            return list(primitive.bind(*args, **params))
    else:

        def apply(*args: Any) -> list[Any]:
            return [primitive.bind(*args, **params)]

    return Operation(apply, str(primitive), custom_calls(params), bit_identical=bit_identical)


def of_program(key: Hashable, make: Callable[[], Operation]) -> Operation:
    """Returns the cached differentiable operation of a traced program; creates it with `make` if it is missing."""
    try:
        return _of_this_trace(_programs).get(key, make)
    except TypeError:
        return make()


def of_library_call(key: Hashable, make: Callable[[], LibraryCall]) -> LibraryCall | None:
    """Returns the cached trace of a call of a JAX library function; creates it with `make` if it is missing.

    Returns None if the key is not hashable (`custom_root` holds functions).
    """
    try:
        hash(key)
    except TypeError:
        return None
    return _of_this_trace(_calls).get(key, make)


def clear() -> None:
    """Removes all differentiable operations that tapes have cached, with their compiled programs.

    `jax.clear_caches` clears JAX's own caches.
    """
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
