"""The scope of a converted function, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malt.operators.variables import UndefinedReturnValue

from mirrored.tf._autograph.truth import truth
from mirrored.tf._errors import InvalidArgumentError


class FunctionScope:
    """Surrounds the body of a converted function.

    Args:
        function_name: The function.
        scope_name: The name under which the body knows the scope.
        options: How it was converted.

    Attributes:
        falls_through: Names of functions whose end can be reached without a `return`. Set by the transpiler.
    """

    falls_through: frozenset[str] = frozenset()

    def __init__(self, function_name: str, scope_name: str, options: Any) -> None:
        self.function_name, self.name, self.options = function_name, scope_name, options
        self.callopts = options

    def __enter__(self) -> FunctionScope:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ret(self, value: Any, did_return: Any) -> Any:
        """What the function returns.

        Raises:
            InvalidArgumentError: Whether it returns anything is known only when the program runs.
        """
        if isinstance(value, UndefinedReturnValue):
            return None
        if self.function_name in self.falls_through and truth(did_return) is None:
            raise InvalidArgumentError.of(
                self.function_name,
                found="a `return` that depends on a tensor, and an end that is reached without one",
                rule="where the choice is made when the program runs, every path returns a value of the same type",
                remedy="return a value at the end of the function, too",
            )
        return value


def with_function_scope(thunk: Callable[[FunctionScope], Any], scope_name: str, options: Any) -> Any:
    """The body of a converted lambda."""
    with FunctionScope("lambda", scope_name, options) as scope:
        return thunk(scope)
