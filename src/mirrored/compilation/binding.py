"""Functions as methods, one compiled function per instance, found again by the instance's identity; and as code."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from mirrored.errors import ContextError

F = TypeVar("F")


class Code:
    """What is copied and pickled as Python's functions are: as itself, and by its name."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])


class Bindings(Generic[F]):
    """What was made for each instance, for as long as the instance lives.

    By identity, since instances that compare equal still have their own variables, and since many cannot be hashed
    (a plain dataclass). An instance that no weak reference can point to is kept alive.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, F]] = {}

    def find(self, instance: Any, make: Callable[[], F]) -> F:
        """What `make` gave for this instance, called at its first use."""
        key = id(instance)
        if key not in self._made:
            self._made[key] = (self._holder(instance, key), make())
        return self._made[key][1]

    def _holder(self, instance: Any, key: int) -> Any:
        try:
            # Forgets with the instance, before another object can get its id.
            return weakref.ref(instance, lambda _: self._made.pop(key, None))
        except TypeError:
            return instance


def bind(python_function: Callable[..., Any], instance: Any) -> Callable[..., Any]:
    """`python_function` with `instance` as its first argument, without keeping the instance alive.

    Raises:
        ContextError: When it is called after the instance has gone.
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
                found="the object whose method it is has gone",
                rule="a compiled method does not keep its object alive",
                remedy="keep the object: model = Model(); model.step(x)",
            )
        return python_function(found, *args, **kwargs)

    return method
