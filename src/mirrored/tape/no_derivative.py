"""`NoDerivative`: the inputs with respect to which a recorded operation has no derivative, and the cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from mirrored.errors import TapeError

Key = int

_PASS_THE_VALUE = (
    "pass the value as an argument of the function, for instance f(x, w.read_value()), and return its cotangent from "
    "the rule; or, if it needs no gradient, close over stop_gradient(value)"
)


class RuleClosesOverError(TypeError):
    """Raised if a custom derivative rule inside `jit` closes over an array that a tape tracks, or reads a variable.

    The traced rule is cached for later calls, but the array or value belongs to the current call.
    """

    def __init__(self) -> None:
        super().__init__(
            "the custom derivative rule of a nested function closes over an array that a tape tracks, or reads a "
            "variable"
        )


_ANOTHER_OPERATION: Final = (
    "use lax.scan, or lax.fori_loop with a fixed number of steps, instead of lax.while_loop, which tapes "
    "differentiate only in eager code, outside of mirrored.function, jit and vmap; "
    "define a gradient with custom_gradient; or exclude the operation with stop_gradient"
)
_IN_THE_RUN: Final = (
    "open the tape inside the function given to strategy.run: there, a derivative rule has the context of its replica, "
    "and can call collectives; or exclude the operation with stop_gradient"
)


@dataclasses.dataclass(frozen=True)
class NoDerivative:
    """Values with respect to which a recorded operation has no derivative, and the reason.

    A gradient through the operation raises an error if it is requested for a source on which such a value depends.

    Attributes:
        keys: The keys of the values.
        name: The name of the operation.
        failure: The reason why there is no derivative.
        remedy: The remedy in the error message; None for one that fits the operation.
    """

    keys: Sequence[Key]
    name: str
    failure: Exception | str
    remedy: str | None = None

    def error(self) -> TapeError:
        """Returns the error for a gradient that would flow through the recorded operation, which has no derivative."""
        error = TapeError(
            "GradientTape.gradient",
            found=f"the backward pass goes through {self.name!r}, which JAX cannot differentiate: {self.failure}",
            rule="a target can depend on a source only through operations that have a derivative",
            remedy=self.remedy or (_IN_THE_RUN if self.name == "shard_map" else _ANOTHER_OPERATION),
        )
        error.__cause__ = self.failure if isinstance(self.failure, Exception) else None
        return error


def closed_over(keys: Sequence[Key], name: str) -> NoDerivative:
    """Returns a record stating that a function has no derivative with respect to captured values.

    The function has a custom derivative rule, which has no cotangent for values that the function closes over.
    """
    return NoDerivative(
        keys,
        name,
        "the function closes over a watched value or reads a watched variable, and its custom derivative rule has no "
        "cotangent for that value",
        _PASS_THE_VALUE,
    )


def not_derived(keys: Sequence[Key], name: str, failure: Exception) -> NoDerivative:
    """Returns a `NoDerivative` for the inputs of an operation that JAX could not differentiate."""
    if isinstance(failure, RuleClosesOverError):
        return NoDerivative(keys, name, failure, _PASS_THE_VALUE)
    return NoDerivative(keys, name, failure)
