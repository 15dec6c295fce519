"""Copies, pickles and binds compiled functions like Python functions, and converts Python functions before tracing."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from mirrored.errors import ContextError
from mirrored.variables import Variable

if TYPE_CHECKING:
    from mirrored.compilation.concrete import ConcreteFunction

F = TypeVar("F")


class Code:
    """Base class of callables that, like Python functions, are copied by reference and pickled by name."""

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])


class Conversion(NamedTuple):
    """The functions by which a compiled function converts its Python code and its results.

    Attributes:
        code: A function from the Python function to the one that is traced. None: the Python function itself.
        result: A function from the result to the one that is returned, also of a call inside another compiled function
            or an eager run. None: the result itself.
        concrete: The class of its concrete functions, a subclass of `ConcreteFunction`. None: `ConcreteFunction`.
    """

    code: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    result: Callable[[Any], Any] | None = None
    concrete: type[ConcreteFunction] | None = None

    def with_result(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `call` so that this conversion is applied to each result."""
        convert = self.result
        if convert is None:
            return call

        @functools.wraps(call)
        def converted(*args: Any, **kwargs: Any) -> Any:
            return convert(call(*args, **kwargs))

        return converted


UNCONVERTED: Final = Conversion()


class Bindings(Generic[F]):
    """A mapping keyed by instances, which removes an entry when the instance is deleted.

    Instances are compared by identity, because equal instances still have different variables, and many instances (such
    as plain dataclasses) are not hashable. An instance that does not support weak references is kept alive.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, F]] = {}

    def find(self, instance: object, make: Callable[[], F]) -> F:
        """Returns the object that belongs to `instance`; creates it with `make` at the first call."""
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


def with_copies(function: Callable[..., Any], memo: dict[int, Any]) -> Callable[..., Any]:
    """Copies a Python function for `copy.deepcopy`, replacing the objects that it captures by their copies.

    A bound method, a partial function or another object that is called is deep-copied, with what it holds. Python's
    deep copy of a function is the function itself; here one that closes over variables or over objects of `memo` gets
    their copies, and so do the functions that it closes over.

    Args:
        function: The Python function.
        memo: That of `copy.deepcopy`: the copies by the ids of the copied objects. Empty if the function alone is
            copied: it then keeps its variables.
    """
    if not isinstance(function, types.FunctionType):
        return copy.deepcopy(function, memo)
    return _function_with_copies(function, memo, ()) if memo else function


def _function_with_copies(
    function: types.FunctionType, memo: dict[int, Any], around: tuple[types.FunctionType, ...]
) -> types.FunctionType:
    cells = function.__closure__ or ()
    copies = tuple(_with_copy(cell, memo, (*around, function)) for cell in cells)
    if all(new is old for new, old in zip(copies, cells, strict=True)):
        return function
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, copies)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__annotations__ = function.__qualname__, function.__annotations__
    vars(made).update(vars(function))
    return made


def _with_copy(cell: types.CellType, memo: dict[int, Any], around: tuple[types.FunctionType, ...]) -> types.CellType:
    """Returns a closure cell with a deep copy of the cell's content; the same cell if the content is not copied."""
    try:
        content = cell.cell_contents
    except ValueError:  # a name without a value yet
        return cell
    if isinstance(content, types.MethodType) and id(content.__self__) in memo:
        return types.CellType(copy.deepcopy(content, memo))
    if isinstance(content, types.FunctionType) and content not in around:
        made = _function_with_copies(content, memo, around)
        return cell if made is content else types.CellType(made)
    # The copied object may hold a variable of the function in a later attribute: it is not in `memo` yet.
    is_copied = id(content) in memo or isinstance(content, Variable)
    return types.CellType(copy.deepcopy(content, memo)) if is_copied else cell


def reference_to(instance: object) -> Callable[[], Any]:
    """Returns a weak reference to `instance`, or a strong one if its class does not support weak references."""
    try:
        return weakref.ref(instance)
    except TypeError:
        return lambda: instance


def bind(python_function: Callable[..., Any], instance: object) -> Callable[..., Any]:
    """Binds `python_function` to `instance` as a method that holds only a weak reference to the instance.

    Raises:
        ContextError: The result is called after the instance was deleted.
    """
    reference = reference_to(instance)

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

    with contextlib.suppress(TypeError, ValueError):  # some callables have no signature
        signature = inspect.signature(python_function)
        without_self = [*signature.parameters.values()][1:]
        method.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return method
