"""Binds compiled functions to instances as methods, and copies and pickles them by name."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from mirrored.errors import ContextError

F = TypeVar("F")


class Code:
    """Base of objects that are copied and pickled like Python functions: copied as themselves, pickled by name."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])


class Bindings(Generic[F]):
    """Maps each instance to an object that is created for it and released with it.

    Instances are compared by identity, because equal instances still have different variables, and many instances (such
    as plain dataclasses) are not hashable. An instance that does not support weak references is kept alive.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, F]] = {}

    def find(self, instance: object, make: Callable[[], F]) -> F:
        """Returns the object that belongs to `instance`; `make` creates it at the first call for that instance."""
        key = id(instance)
        if key not in self._made:
            self._made[key] = (self._holder(instance, key), make())
        return self._made[key][1]

    def _holder(self, instance: object, key: int) -> Any:
        try:
            # The callback removes the entry when the instance is deleted, before a new object can have the same id.
            return weakref.ref(instance, lambda _: self._made.pop(key, None))
        except TypeError:
            return instance


def bind(python_function: Callable[..., Any], instance: object) -> Callable[..., Any]:
    """Returns `python_function` with `instance` as its first argument. The result does not keep the instance alive.

    Raises:
        ContextError: The result is called after the instance was deleted.
    """
    try:
        reference: Callable[[], Any] = weakref.ref(instance)
    except TypeError:
        reference = lambda: instance  # noqa: E731

    @functools.wraps(python_function)
    def method(*args: Any, **kwargs: Any) -> Any:
        found = reference()
        if found is None:
            raise ContextError(
                python_function.__qualname__,
                found="the instance of this method was deleted",
                rule="a compiled method does not keep its instance alive, so the program must",
                remedy="keep a reference to it: model = Model(); model.step(x)",
            )
        return python_function(found, *args, **kwargs)

    return method
