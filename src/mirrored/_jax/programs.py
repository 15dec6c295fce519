"""Flat functions of arrays as jaxprs, which can be inspected, pruned and run.

Supports JAX 0.10 to 0.12: `jax.make_jaxpr`, `jax.core.eval_jaxpr`, and the attributes of jaxprs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src import linear_util as _linear_util
from jax._src.interpreters import partial_eval as _partial_eval
from jax.extend.core import ClosedJaxpr, Literal  # type: ignore[attr-defined]

from mirrored._jax.inlining import apply_jaxpr

float0 = np.dtype(_dtypes.float0)

_trace: Any = getattr(_partial_eval, "trace_to_jaxpr_dynamic", None)
_WHAT = _core.DebugInfo("mirrored", "an operation's rule", None, None)


class JaxprProgram:
    """A traced flat function: an open `jaxpr` and the values `constants` of its constvars."""

    __slots__ = ("__name__", "__weakref__", "constants", "jaxpr")

    def __init__(self, jaxpr: Any, constants: Sequence[Any], name: str = "program") -> None:
        self.jaxpr = jaxpr
        self.constants = list(constants)
        self.__name__ = name

    def __call__(self, *args: Any) -> list[Any]:
        """Applies every equation under the current trace."""
        return apply_jaxpr(self.jaxpr, self.constants, args)

    def of_constants(self, *args: Any) -> list[Any]:
        """Applies the program with the constants as leading arguments."""
        count = len(self.constants)
        return apply_jaxpr(self.jaxpr, args[:count], args[count:])

    @property
    def out_avals(self) -> list[Any]:
        """The abstract values of its results."""
        return [atom.aval for atom in self.jaxpr.outvars]

    def keeping(self, positions: Sequence[int]) -> JaxprProgram:
        """Returns the same program with only these results, and without the equations that they do not need."""
        outvars = [self.jaxpr.outvars[i] for i in positions]
        return JaxprProgram(_used_part(self.jaxpr, outvars), self.constants, self.__name__)

    def source_of(self, atom: Any) -> tuple[str, Any] | None:
        """Returns the input position or constant that a result is; None if an equation computes it."""
        if isinstance(atom, Literal):
            return "constant", atom.val
        for position, variable in enumerate(self.jaxpr.invars):
            if variable is atom:
                return "input", position
        for variable, constant in zip(self.jaxpr.constvars, self.constants, strict=True):
            if variable is atom:
                return "constant", constant
        return None

    def depends(self, inputs: Sequence[int]) -> list[bool]:
        """Returns, for each result, whether it depends on any of these inputs according to the dataflow."""
        reached = {self.jaxpr.invars[i] for i in inputs}
        for equation in self.jaxpr.eqns:
            if any(not isinstance(atom, Literal) and atom in reached for atom in equation.invars):
                reached.update(equation.outvars)
        return [not isinstance(atom, Literal) and atom in reached for atom in self.jaxpr.outvars]

    def computed_at(self) -> list[int]:
        """Returns, for each result, the index of the equation that computes it; -1 for inputs and constants."""
        found = {variable: number for number, equation in enumerate(self.jaxpr.eqns) for variable in equation.outvars}
        return [-1 if isinstance(atom, Literal) else found.get(atom, -1) for atom in self.jaxpr.outvars]

    @property
    def captured(self) -> bool:
        """Whether it has captured a tracer or a box, which live only for one trace."""
        return any(isinstance(constant, _core.Tracer) or hasattr(constant, "payload") for constant in self.constants)


def _used_part(jaxpr: Any, outvars: Sequence[Any]) -> Any:
    """Returns `jaxpr` with these results, without the equations that only other results need."""
    needed = {atom for atom in outvars if not isinstance(atom, Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(variable in needed for variable in equation.outvars):
            equations.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return jaxpr.replace(outvars=list(outvars), eqns=equations[::-1])


def program_of(function: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> JaxprProgram:
    """Traces `function(*arrays) -> sequence of arrays` at these abstract values.

    Like `jax.make_jaxpr`, without its handling of argument structures and signatures, which dominates for a function of
    a few equations *(measured: 185 us and 20 us)*. It is called twice for each new operation on a tape.
    """

    def flat(*args: Any) -> list[Any]:
        return list(function(*args))

    if _trace is None:
        closed: ClosedJaxpr = jax.make_jaxpr(flat)(*avals)
        return JaxprProgram(closed.jaxpr, closed.consts)
    jaxpr, _, constants = _trace(_linear_util.wrap_init(flat, debug_info=_WHAT), list(avals))
    if hasattr(jaxpr, "with_consts"):  # from JAX 0.12 on a jaxpr holds its constants itself
        jaxpr = jaxpr.with_consts(constants)
    return JaxprProgram(jaxpr, constants)


def as_function(closed: Any) -> Callable[..., list[Any]]:
    """Returns a closed jaxpr as a function of its inputs."""
    return lambda *args: apply_jaxpr(closed.jaxpr, closed.consts, args)


def aval_of(value: Any) -> Any:
    """Returns the abstract value of an array, a tracer, a NumPy array or a Python number."""
    return _core.typeof(_dtypes.canonicalize_value(value) if isinstance(value, (np.ndarray, np.generic)) else value)


def is_inexact(aval: Any) -> bool:
    """Returns whether values of this type can have gradients: float or complex."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and dtype != float0 and _dtypes.issubdtype(dtype, np.inexact)


def zero_tangent(aval: Any) -> Any:
    """Returns the zero cotangent of an integer or bool result."""
    return np.zeros(aval.shape, float0)


def context_key() -> Any:
    """Returns everything but arguments on which a trace depends: x64, matmul precision, mesh, axis environment, ..."""
    return _config.trace_context()
