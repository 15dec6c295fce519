"""Copies the NumPy arrays inside jaxprs, so that later changes of the originals do not affect traced programs.

Supports JAX 0.10 to 0.12: from 0.12 on `ClosedJaxpr` and `Jaxpr` are one class.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var  # type: ignore[attr-defined]

from mirrored._jax.arrays import is_owned

_JAXPRS: Final = (Jaxpr, ClosedJaxpr)


def with_own_arrays(jaxpr: Jaxpr, constants: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Returns a jaxpr and its constants, with copies in place of the NumPy arrays that user code can write to.

    The copied arrays are constants of the jaxpr and of its inner jaxprs (of `jax.jit`), and literals: JAX turns NumPy
    arrays without dimensions into literals.
    """
    copies = _Copies()
    return copies.of_jaxpr(jaxpr), tuple(map(copies.of_array, constants))


class _Copies:
    """Copies of jaxprs and arrays, memoized by identity, so that a shared jaxpr is still lowered only once."""

    def __init__(self) -> None:
        self._jaxprs: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}

    def of_array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or is_owned(value):
            return value
        made = self._arrays.get(id(value))
        if made is None:
            made = self._arrays[id(value)] = value.copy()
        return made

    def of_jaxpr(self, jaxpr: Any) -> Any:
        """Returns a copy of an open or closed jaxpr; the jaxpr itself if no array in it is copied."""
        made = self._jaxprs.get(id(jaxpr))
        if made is None:
            made = self._jaxprs[id(jaxpr)] = self._made(jaxpr)
        return made

    def _made(self, jaxpr: Any) -> Any:
        opened, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
        eqns = [self._of_equation(eqn) for eqn in opened.eqns]
        outvars = [self._of_atom(atom) for atom in opened.outvars]
        own = [self.of_array(constant) for constant in consts]
        if _same(eqns, opened.eqns) and _same(outvars, opened.outvars) and _same(own, consts):
            return jaxpr
        made = opened.replace(eqns=eqns, outvars=outvars)
        return ClosedJaxpr(made, own) if hasattr(jaxpr, "consts") else made

    def _of_equation(self, eqn: JaxprEqn) -> JaxprEqn:
        invars = [self._of_atom(atom) for atom in eqn.invars]
        params = {name: self._of_parameter(value) for name, value in eqn.params.items()}
        if _same(invars, eqn.invars) and _same(list(params.values()), list(eqn.params.values())):
            return eqn
        return eqn.replace(invars=invars, params=params)  # type: ignore[no-any-return]

    def _of_atom(self, atom: Var | Literal) -> Any:
        if not isinstance(atom, Literal):
            return atom
        own = self.of_array(atom.val)
        return atom if own is atom.val else Literal(own, atom.aval)

    def _of_parameter(self, value: Any) -> Any:
        if isinstance(value, _JAXPRS):
            return self.of_jaxpr(value)
        if isinstance(value, (tuple, list)):  # the branches of `lax.cond`, or a named tuple of functions
            parts = [self._of_parameter(one) for one in value]
            if _same(parts, value):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value


def _same(made: Sequence[Any], old: Sequence[Any]) -> bool:
    return all(map(operator.is_, made, old))
