"""The context manager that AutoGraph puts around the body of each converted function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malt.operators.variables import UndefinedReturnValue

from mirrored.tf._autograph import effects
from mirrored.tf._autograph.truth import truth
from mirrored.tf._errors import InvalidArgumentError


class FunctionScope:
    """The context manager around the body of a function that AutoGraph has converted.

    It determines what the function returns.

    Args:
        function_name: The name of the function.
        scope_name: The name of the scope in the body.
        options: The options of the conversion.

    Attributes:
        falls_through: Names of functions that can end without a `return`. Set by the transpiler.
    """

    falls_through: frozenset[str] = frozenset()

    def __init__(self, function_name: str, scope_name: str, options: object) -> None:
        self.function_name, self.name, self.options = function_name, scope_name, options
        self.callopts = options

    def __enter__(self) -> FunctionScope:
        effects.enter()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            effects.leave()
        except BaseException:  # an interrupt where the function begins
            effects.leave()
            raise

    def ret(self, value: object, did_return: object) -> Any:
        """Returns the result of the converted function; None if the function executed no `return`.

        Raises:
            InvalidArgumentError: Whether the function returns a value is known only at run time.
        """
        if isinstance(value, UndefinedReturnValue):
            return None
        if self.function_name in self.falls_through and truth(did_return) is None:
            raise InvalidArgumentError.of(
                self.function_name,
                found="a tensor decides between a `return` and a path that ends without a `return`",
                rule="if the path is chosen at run time, every path must return a value of the same type",
                remedy="return a value at the end of the function, too",
            )
        return value


def with_function_scope(thunk: Callable[[FunctionScope], Any], scope_name: str, options: object) -> Any:
    """Runs the converted body of a lambda function in a new `FunctionScope`."""
    with FunctionScope("lambda", scope_name, options) as scope:
        return thunk(scope)
