"""Traces a function once into a jaxpr, and applies it inside another trace.

Supports JAX 0.10 to 0.12 (`jax.make_jaxpr`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params  # type: ignore[attr-defined]

from mirrored._jax.inlining import apply_jaxpr


@dataclasses.dataclass(frozen=True)
class Staged:
    """A traced function: its open jaxpr, and its constants, which are the captured values."""

    jaxpr: Jaxpr
    constants: tuple[Any, ...]

    @property
    def num_inputs(self) -> int:
        """The number of inputs, without the constants."""
        return len(self.jaxpr.invars)

    @property
    def closed(self) -> ClosedJaxpr:
        """The closed jaxpr: the program with its constants."""
        return ClosedJaxpr(self.jaxpr, list(self.constants))

    def giving(self, positions: Sequence[int]) -> Staged:
        """Returns the same program with a selection of its results, in this order."""
        outvars = [self.jaxpr.outvars[position] for position in positions]
        return dataclasses.replace(self, jaxpr=self.jaxpr.replace(outvars=outvars))

    def __call__(self, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Applies the program to these values under the current trace."""
        return apply_jaxpr(self.jaxpr, constants, inputs)


def stage(
    flat_function: Callable[..., Sequence[Any]],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *,
    axes: Sequence[tuple[str, int]] = (),
) -> Staged:
    """Traces `flat_function(*arrays) -> list of arrays` once.

    Args:
        flat_function: A function from arrays to a flat list of arrays.
        shapes: The shapes and dtypes of its inputs.
        axes: The names and sizes of mesh axes over which it may reduce.
    """
    closed: ClosedJaxpr = jax.make_jaxpr(flat_function, axis_env=list(axes))(*shapes)
    return Staged(closed.jaxpr, tuple(closed.consts))


def has_callbacks(jaxpr: Any) -> bool:
    """Returns whether a program calls back into Python while it runs, so that it may fail midway."""
    for equation in jaxpr.eqns:
        if "callback" in equation.primitive.name:
            return True
        if any(has_callbacks(inner) for inner in jaxprs_in_params(equation.params)):
            return True
    return False
