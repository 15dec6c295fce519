"""Value numbering: finds variables of a jaxpr that hold equal values.

The virtual replicas of one device are traced into one jaxpr, so the new values that they compute for one mirrored
variable are different variables of the jaxpr. Two variables get equal numbers if the same operations compute them from
the same inputs. Inner jaxprs are compared by structure, because tracing one Python function twice may give two jaxpr
objects.

Source: value numbering by hash-consing, J. Cocke and J. T. Schwartz, "Programming Languages and Their Compilers"
(1970).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.jaxprs import (
    Branch,
    Call,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Kind,
    Literal,
    Plain,
    Scan,
    ValueSource,
    Var,
    While,
    constants_of,
    parameters_of,
)
from mirrored._jax.local_collectives import SAME
from mirrored._jax.traces import Tracer
from mirrored._typing import HostArray
from mirrored.analysis.dataflow import ALWAYS, DataflowRules, EquationDataflow, operands_in

_Numbered = dict[Var, int]
_Site = tuple[Hashable, ...]


class ValueNumbering:
    """Assigns numbers to the variables of a jaxpr, so that variables with equal numbers hold equal values.

    The equations inside a call or branch are numbered as if it were inlined. Two outputs of a call that hold the same
    value thus get the same number. Loops are numbered by partition refinement over their carries.

    Args:
        jaxpr: The jaxpr to number.
        inputs: A key per constant and input, in order. Equal keys mean equal values.
        flows: The dataflow rules of its equations.

    Attributes:
        unequal: The equations with the primitive `SAME` (see `ReplicationCheck.check_collectives`) whose operands, one
            condition per virtual replica, may differ.
    """

    def __init__(self, jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence[Hashable], flows: DataflowRules) -> None:
        self._flows = flows
        self._interned: dict[Hashable, int] = {}
        self._structures: dict[int, int] = {}
        self._results: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._functions: dict[int, list[int]] = {}
        self._kept: list[Any] = []  # Keeps jaxprs alive: an id identifies an object only during its lifetime.
        self.unequal: list[Any] = []
        self._of: _Numbered = {}
        for var, key in zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True):
            self._of[var] = self._intern(("input", key))
        self._walk(jaxpr, self._of, ())

    def __getitem__(self, atom: Var | Literal) -> int:
        """Returns the value number of a variable or literal of the jaxpr."""
        return self._read(self._of, atom)

    def operation(self, eqn: JaxprEqn) -> int:
        """Returns a number that identifies an equation's primitive and parameters, regardless of the operands."""
        kind = self._flows.kind(eqn)
        if isinstance(kind, Call) and eqn.primitive.name != "shard_map":
            # The other parameters (names, derivative rules, layouts) do not change the result.
            return self._intern(("call", eqn.primitive.name, self.structure(kind.jaxpr)))
        params = tuple((name, self._key(value)) for name, value in parameters_of(eqn).items())
        return self._intern((eqn.primitive.name, params))

    def structure(self, jaxpr: Jaxpr | ClosedJaxpr) -> int:
        """Returns a number for an inner jaxpr, equal for jaxprs that differ only in the names of their variables."""
        found = self._structures.get(id(jaxpr))
        if found is None:
            found = self._structures[id(jaxpr)] = self._intern(self._shape(jaxpr))
            self._kept.append(jaxpr)
        return found

    def _read(self, numbers: _Numbered, atom: Var | Literal) -> int:
        if isinstance(atom, Literal):
            return self._intern(("literal", str(atom.aval), constant_key(atom.val)))
        return numbers[atom]

    def _walk(self, jaxpr: Jaxpr | ClosedJaxpr, numbers: _Numbered, site: _Site) -> None:
        """Assigns value numbers to the results of all equations; `site` is the chain of calls that led to the jaxpr."""
        for eqn, kind in self._flows.kinds(jaxpr.eqns):
            operands = [self._read(numbers, atom) for atom in eqn.invars]
            numbers.update(zip(eqn.outvars, self._equation(eqn, kind, operands, site), strict=True))

    def _equation(self, eqn: JaxprEqn, kind: Kind, operands: list[int], site: _Site) -> list[int]:
        here = (*site, id(eqn))
        if eqn.primitive.name == SAME:
            if len(set(operands)) > 1:
                self.unequal.append(eqn)
            return operands[:1]
        match kind:
            case Call(jaxpr) if len(jaxpr.invars) == len(operands) and eqn.primitive.name != "shard_map":
                return self._inside(jaxpr, operands, here)
            case Branch(branches):
                results = [self._inside(branch, operands[1:], (*here, i)) for i, branch in enumerate(branches)]
                return [self._chosen(operands[0], column) for column in zip(*results, strict=True)]
            case Scan(jaxpr, consts, carries):
                scanned = [self._intern((here, "element", operand)) for operand in operands[consts + carries :]]
                entering = [*operands[: consts + carries], *scanned]
                return self._loop(eqn, operands, _LoopNumbering(jaxpr, entering, consts, carries), here)
            case While(cond, first, jaxpr, consts):
                entering = operands[first:]
                loop = _LoopNumbering(jaxpr, entering, consts, len(entering) - consts, cond, operands[:first])
                return self._loop(eqn, operands, loop, here)
            case ValueSource(_, repeatable) if not repeatable:
                return [self._intern((here, j)) for j in range(len(eqn.outvars))]
            case Plain(jaxprs, is_separate) if not jaxprs and not is_separate:
                operation = self.operation(eqn)
                return [self._intern((operation, j, *operands)) for j in range(len(eqn.outvars))]
        flows = self._flows.of(eqn)
        return [self._opaque(eqn, j, flow, operands, here) for j, flow in enumerate(flows)]

    def _opaque(self, eqn: JaxprEqn, j: int, flow: EquationDataflow, operands: Sequence[int], here: _Site) -> int:
        """Returns the value number of an equation's result `j`, from the equation's operands and parameters alone."""
        if flow.depends & ALWAYS:
            return self._intern((here, j))
        return self._intern((self.operation(eqn), j, *(operands[i] for i in operands_in(flow.depends))))

    def _inside(self, jaxpr: Jaxpr | ClosedJaxpr, operands: Sequence[int], here: _Site) -> list[int]:
        """Returns the value numbers of an inner jaxpr's outputs for given operands, as if its equations were inlined.

        The results are cached by structure and operands, unless the jaxpr contains an operation that may return another
        value each time, such as a callback (`ValueSource.repeatable`).
        """
        repeatable = not any(flow.depends & ALWAYS for flow in self._flows.of_jaxpr(jaxpr))
        key = (self.structure(jaxpr), tuple(operands))
        if repeatable and key in self._results:
            return self._results[key]
        results = self._run(jaxpr, operands, here)
        if repeatable:
            self._results[key] = results
        return results

    def _run(self, jaxpr: Jaxpr | ClosedJaxpr, operands: Sequence[int], here: _Site) -> list[int]:
        numbers: _Numbered = dict(zip(jaxpr.invars, operands, strict=True))
        held = constants_of(jaxpr)
        for i, var in enumerate(jaxpr.constvars):
            key = ("constant", constant_key(held[i])) if i < len(held) else (here, "constant", i)
            numbers[var] = self._intern(("input", key))
        self._walk(jaxpr, numbers, here)
        return [self._read(numbers, atom) for atom in jaxpr.outvars]

    def _chosen(self, index: int, results: Sequence[int]) -> int:
        """Returns a `cond` output's value number: that of the branches if equal, else one that depends on `index`."""
        return results[0] if len(set(results)) == 1 else self._intern(("chosen", index, *results))

    def _loop(self, eqn: JaxprEqn, operands: Sequence[int], loop: _LoopNumbering, here: _Site) -> list[int]:
        """Returns the value numbers of a loop's outputs.

        Carries with equal initial values start in one class. Each pass over the body splits the classes whose members
        get different numbers. When no class splits, the carries of each class are equal after any number of iterations,
        by induction.
        """
        first, last = loop.consts, loop.consts + loop.carries
        starting = loop.entering[first:last]
        classes = _classes(starting)
        while True:
            # A number from an earlier pass may stand for a smaller class now. What was computed from it stays valid: it
            # is a function of a carry, and the passes only ever distinguish more carries.
            carried = [self._intern((here, "carry", group)) for group in classes]
            leaving = self._run(loop.jaxpr, [*loop.entering[:first], *carried, *loop.entering[last:]], here)
            refined = _classes(list(zip(classes, leaving[: loop.carries], strict=True)))
            if refined == classes:
                break
            classes = refined
        if loop.cond is not None:  # notes conditions that differ between replicas (`unequal`)
            self._run(loop.cond, [*loop.of_cond, *carried], here)
        # One group per result: the class of each carry, and the first of equal stacked results, numbered after carries.
        groups = [*classes, *(group + loop.carries for group in _classes(leaving[loop.carries :]))]
        flows = self._flows.of(eqn)
        return [
            starting[j]  # The loop never changes this carry.
            if j < loop.carries and leaving[j] == carried[j]
            else self._loop_result(eqn, loop, group, flows[group], operands, here)
            for j, group in enumerate(groups)
        ]

    def _loop_result(
        self, eqn: JaxprEqn, loop: _LoopNumbering, j: int, flow: EquationDataflow, operands: Sequence[int], here: _Site
    ) -> int:
        """Returns the value number of a loop's result `j`, derived only from the values that the result depends on.

        Loops of two replicas may differ in other parts, such as in the replica id from which they derive a random key.
        Two loops give the same result if the operands on which it depends have the same positions and numbers, and if
        both bodies compute the result, and the carries on which it depends, by the same functions of their inputs.
        """
        known = self._opaque(eqn, j, flow, operands, here)
        if flow.depends & ALWAYS:
            return known
        used = list(operands_in(flow.depends))
        first = len(loop.of_cond) + loop.consts
        computed = self._symbolic(loop.jaxpr)
        part = [(i, computed[i]) for i in (*(k - first for k in used if 0 <= k - first < loop.carries), j)]
        cond = None if loop.cond is None else self._symbolic(loop.cond)[0]
        params = tuple((name, self._key(eqn.params[name])) for name in ("length", "reverse") if name in eqn.params)
        key = ("loop", eqn.primitive.name, params, len(loop.of_cond), loop.consts, loop.carries, cond, *part)
        # The first loop with this key gives its number to all of them.
        return self._interned.setdefault((*key, *((i, operands[i]) for i in used)), known)

    def _symbolic(self, jaxpr: Jaxpr) -> list[int]:
        """Returns the value numbers of a jaxpr's outputs as functions of symbolic inputs."""
        found = self._functions.get(id(jaxpr))
        if found is None:
            inputs = [self._intern(("parameter", i, str(var.aval))) for i, var in enumerate(jaxpr.invars)]
            noted = len(self.unequal)
            found = self._functions[id(jaxpr)] = self._run(jaxpr, inputs, ("parameter", id(jaxpr)))
            del self.unequal[noted:]  # For the actual inputs, the conditions may be equal.
            self._kept.append(jaxpr)
        return found

    def _intern(self, key: Hashable) -> int:
        return self._interned.setdefault(key, len(self._interned))

    def _shape(self, jaxpr: Jaxpr | ClosedJaxpr) -> Hashable:
        names: dict[Var, int] = {}

        def name(var: Var) -> int:
            return names.setdefault(var, len(names))

        def read(atom: Var | Literal) -> Hashable:
            return ("literal", self[atom]) if isinstance(atom, Literal) else name(atom)

        consts = tuple((name(v), constant_key(c)) for v, c in zip(jaxpr.constvars, constants_of(jaxpr), strict=False))
        inputs = tuple((name(var), str(var.aval)) for var in jaxpr.invars)
        eqns = tuple(
            (self.operation(eqn), tuple(map(read, eqn.invars)), tuple(map(name, eqn.outvars))) for eqn in jaxpr.eqns
        )
        return "jaxpr", consts, inputs, eqns, tuple(map(read, jaxpr.outvars))

    def _key(self, value: object) -> Hashable:
        """Converts the value of an equation's parameter to a hashable key; equal keys mean equal values.

        An object of unknown type equals only itself.
        """
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


def constant_key(value: object) -> Hashable:
    """Returns a hashable key for a constant, equal for bit-identical constants of one type.

    An object of unknown type equals only itself, or what its own `__eq__` accepts.
    """
    if not isinstance(value, Tracer) and isinstance(value, (np.ndarray, np.generic, jax.Array)) and _is_plain(value):
        return ArrayContents(value)
    if isinstance(value, (bool, int, float, complex)):
        return type(value).__name__, repr(value)  # keeps -0.0 apart from 0.0
    try:
        hash(value)
    except TypeError:
        return "object", id(value)
    unchanged: Hashable = value
    return unchanged


@dataclasses.dataclass(frozen=True)
class _LoopNumbering:
    """A loop's body, and the value numbers of the body's inputs before the first iteration.

    Attributes:
        jaxpr: The body.
        entering: The numbers of the constants, the initial carries and the elements of scanned arrays.
        consts: The number of constants.
        carries: The number of carries.
        cond: The condition of a `while` loop. Its inputs are its constants, then the carries.
        of_cond: The numbers of the constants of the condition.
    """

    jaxpr: Any
    entering: list[int]
    consts: int
    carries: int
    cond: Any = None
    of_cond: Sequence[int] = ()


def _classes(keys: Sequence[Hashable]) -> list[int]:
    """Returns, for each key, the position of the first key that equals it."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]


class ArrayContents:
    """A hashable key for an array; keys are equal if their arrays have the same shape, dtype and bits.

    The hash covers only the shape and dtype. The bits are fetched from the device and hashed when the key is compared
    with another of the same shape and dtype. So most arrays are never fetched.
    """

    __slots__ = ("_array", "_digest", "_type")

    def __init__(self, array: jax.Array | HostArray | np.generic) -> None:
        self._array = array
        self._digest: bytes | None = None
        self._type = (str(array.dtype), array.shape)

    def __hash__(self) -> int:
        return hash(self._type)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayContents) or self._type != other._type:
            return False
        return self._array is other._array or self.digest() == other.digest()

    def digest(self) -> bytes:
        """Returns a hash of the array's bits."""
        if self._digest is None:
            self._digest = hashlib.blake2b(np.asarray(self._array).tobytes()).digest()
        return self._digest


def _is_plain(value: object) -> bool:
    """Returns whether this process can read the bits of `value`; False for PRNG keys and shards on other processes."""
    return not isinstance(value, jax.Array) or (
        not jnp.issubdtype(value.dtype, jax.dtypes.extended) and value.is_fully_addressable
    )
