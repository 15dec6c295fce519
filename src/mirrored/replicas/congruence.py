"""Which values of a jaxpr are the same value: value numbering.

The local replicas of one device are traced into one jaxpr, so their values of one mirrored variable are different
names. They are one value if they were computed by the same operations from the same inputs: equal numbers here. Inner
jaxprs are compared by structure, since two traces of one Python function may give two objects.

Source: value numbering by hash-consing, J. Cocke and J. T. Schwartz, "Programming Languages and Their Compilers"
(1970).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.jaxprs import Call, ClosedJaxpr, Jaxpr, Literal, Plain, Source, Var, constants_of
from mirrored._jax.traces import Tracer
from mirrored.replicas.flows import ALWAYS, Flow, Flows, operands_in


class Numbers:
    """The value numbers of one jaxpr's variables.

    Args:
        jaxpr: What to number.
        inputs: What each constant and input holds, in order; equal keys are the same value.
        flows: The flows of its equations.
    """

    def __init__(self, jaxpr: Any, inputs: Sequence[Hashable], flows: Flows) -> None:
        self._flows = flows
        self._interned: dict[Hashable, int] = {}
        self._structures: dict[int, int] = {}
        self._kept: list[Any] = []  # an id is a key only as long as its object lives
        self._of: dict[Var, int] = {}
        for var, key in zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True):
            self._of[var] = self._intern(("input", key))
        for eqn in jaxpr.eqns:
            self._number(eqn)

    def __getitem__(self, atom: Any) -> int:
        """The number of a variable or literal of the jaxpr."""
        if isinstance(atom, Literal):
            return self._intern(("literal", str(atom.aval), constant_key(atom.val)))
        return self._of[atom]

    def operation(self, eqn: Any) -> int:
        """The number of what `eqn` does, apart from its operands."""
        kind = self._flows.kind(eqn)
        if isinstance(kind, Call):  # other parameters (names, derivative rules, layouts) do not change the result
            return self._intern(("call", eqn.primitive.name, self.structure(kind.jaxpr)))
        params = tuple((name, self._key(value)) for name, value in eqn.params.items())
        return self._intern((eqn.primitive.name, params))

    def structure(self, jaxpr: Any) -> int:
        """The number of an inner jaxpr: equal for jaxprs that differ in names only."""
        found = self._structures.get(id(jaxpr))
        if found is None:
            found = self._structures[id(jaxpr)] = self._intern(self._shape(jaxpr))
            self._kept.append(jaxpr)
        return found

    def _number(self, eqn: Any) -> None:
        operands = [self[atom] for atom in eqn.invars]
        operation = self.operation(eqn)
        kind = self._flows.kind(eqn)
        if isinstance(kind, Source) and not kind.repeatable:
            self._of.update((var, self._intern((id(eqn), j))) for j, var in enumerate(eqn.outvars))
        elif isinstance(kind, Plain) and not kind.jaxprs:
            self._of.update((var, self._intern((operation, j, *operands))) for j, var in enumerate(eqn.outvars))
        else:
            passed = self._passed(kind.jaxpr, operands) if isinstance(kind, Call) else {}
            for j, (var, flow) in enumerate(zip(eqn.outvars, self._flows.of(eqn), strict=True)):
                self._of[var] = passed[j] if j in passed else self._result(eqn, operation, j, flow, operands)

    def _result(self, eqn: Any, operation: int, j: int, flow: Flow, operands: Sequence[int]) -> int:
        if flow.depends & ALWAYS:
            return self._intern((id(eqn), j))
        return self._intern((operation, j, *(operands[i] for i in operands_in(flow.depends))))

    def _passed(self, jaxpr: Any, operands: Sequence[int]) -> dict[int, int]:
        """The outputs of a call that are one of its operands or a literal."""
        at = dict(zip(jaxpr.invars, operands, strict=True))
        passed = {}
        for j, atom in enumerate(jaxpr.outvars):
            if isinstance(atom, Literal):
                passed[j] = self[atom]
            elif atom in at:
                passed[j] = at[atom]
        return passed

    def _intern(self, key: Hashable) -> int:
        return self._interned.setdefault(key, len(self._interned))

    def _shape(self, jaxpr: Any) -> Hashable:
        names: dict[Var, int] = {}

        def name(var: Var) -> int:
            return names.setdefault(var, len(names))

        def read(atom: Any) -> Hashable:
            return ("literal", self[atom]) if isinstance(atom, Literal) else name(atom)

        consts = tuple((name(v), constant_key(c)) for v, c in zip(jaxpr.constvars, constants_of(jaxpr), strict=False))
        inputs = tuple((name(var), str(var.aval)) for var in jaxpr.invars)
        eqns = tuple(
            (self.operation(eqn), tuple(map(read, eqn.invars)), tuple(map(name, eqn.outvars))) for eqn in jaxpr.eqns
        )
        return "jaxpr", consts, inputs, eqns, tuple(map(read, jaxpr.outvars))

    def _key(self, value: Any) -> Hashable:
        """A parameter of an equation as a key. Unknown objects are equal to themselves only."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            return "jaxpr", self.structure(value)
        if isinstance(value, (tuple, list)):
            return type(value).__name__, tuple(map(self._key, value))
        if isinstance(value, dict):
            return "dict", tuple((key, self._key(item)) for key, item in value.items())
        if isinstance(value, (float, complex)):
            return repr(value)  # keeps -0.0 apart from 0.0
        return constant_key(value)


def constant_key(value: Any) -> Hashable:
    """A key of a constant: equal for equal bits of equal type; unknown objects are equal to themselves only."""
    if not isinstance(value, Tracer) and isinstance(value, (np.ndarray, np.generic, jax.Array)) and _is_plain(value):
        return Contents(value)
    if isinstance(value, (bool, int, float, complex)):
        return type(value).__name__, repr(value)  # keeps -0.0 apart from 0.0
    try:
        hash(value)
    except TypeError:
        return "object", id(value)
    unchanged: Hashable = value
    return unchanged


class Contents:
    """An array compared by its bits. They are fetched only when another one of its shape and dtype comes up."""

    __slots__ = ("_array", "_digest", "_type")

    def __init__(self, array: Any) -> None:
        self._array = array
        self._digest: bytes | None = None
        self._type = (str(array.dtype), array.shape)

    def __hash__(self) -> int:
        return hash(self._type)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contents) or self._type != other._type:
            return False
        return self._array is other._array or self.digest() == other.digest()

    def digest(self) -> bytes:
        """A hash of the bits."""
        if self._digest is None:
            self._digest = hashlib.blake2b(np.asarray(self._array).tobytes()).digest()
        return self._digest


def _is_plain(value: Any) -> bool:
    """Whether its bits can be read here."""
    return not isinstance(value, jax.Array) or (
        not jnp.issubdtype(value.dtype, jax.dtypes.extended) and value.is_fully_addressable
    )
