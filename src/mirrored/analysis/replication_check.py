"""Proves from a jaxpr which values are equal on all replicas, and explains why the other values are not."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from itertools import groupby
from typing import Any, Final

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
    Var,
    While,
    collectives_in,
    constants_of,
    passes_first_operands,
    primitive_names,
)
from mirrored._jax.local_collectives import SAME
from mirrored._jax.source_lines import source_line
from mirrored.analysis.dataflow import ALWAYS, DataflowRules, inner_jaxprs, operands_in
from mirrored.analysis.value_numbering import ValueNumbering, constant_key
from mirrored.analysis.varying import PathStep, VaryingAnalysis, path_step_of, shape_of
from mirrored.errors import MergeError
from mirrored.topology.device_assignment import AXIS

# Replication check: proves from a jaxpr which values are equal on all replicas.
#
# `shard_map(check_vma=False)` trusts any claim in `out_specs` that a result is replicated. This module proves the claim
# on the jaxpr of the replica body. (`check_vma=True` would require user code to mark its varying values, and says
# nothing about several replicas on one device.) A value is *replicated* if it is equal on every device, and *varying*
# if it may differ:
#
# - The per-replica batch, the replica ID and per-replica state are varying.
# - Mirrored and plain variables, arguments that are not per-replica, values that a trace outside the run has computed,
#   and constants are replicated. Between processes this is compared at calls (`compilation.dispatch.WorkerArguments`),
#   not proven.
# - `psum`, `pmax`, `pmin` and `all_gather` over the whole axis return replicated values. So does the primitive
#   `equal_on_all_devices`, by which an algorithm of other collectives (the fixed-order tree) vouches for its result.
# - `axis_index`, reductions over `axis_index_groups`, host callbacks and other operations that may give each device its
#   own result (`ValueSource`) return varying values whatever their operands are.
# - Any other operation returns a varying value if one of its operands is varying. The condition of a loop or branch
#   counts as an operand of all its results.
#
# A device may run several virtual replicas, which are traced into one body. Their values must also be equal to each
# other: computed by the same operations from the same inputs (`mirrored.analysis.value_numbering`).
#
# Equal means: the same operations on equal operands. That their bits are equal, too, assumes that every device compiles
# and executes them alike.

_LONGEST_PATH: Final = 8
_NAMES_PER_LINE: Final = 3


@dataclasses.dataclass(frozen=True)
class Origin:
    """Description of an input of a replica program: its name, and whether the input is equal on all replicas.

    Attributes:
        label: Its name in error messages, such as ``"variable 'dense/kernel'"``.
        varies: Whether it may differ between replicas. Not used on one device, where `identity` tells the replicas'
            inputs apart.
        identity: A key for value numbering. Inputs with equal identities hold the same value. None means that no
            other input is known to hold the same value.
    """

    label: str
    varies: bool
    identity: Hashable = None

    @classmethod
    def constant(cls, value: object) -> Origin:
        """Returns the description of a concrete constant, which is equal on all replicas.

        Bit-identical constants of the same shape and dtype get equal identities.
        """
        return cls(
            f"a constant of shape {getattr(value, 'shape', ())}",
            varies=False,
            identity=("constant", constant_key(value)),
        )


class ReplicationCheck:
    """Determines which values of a replica program (the jaxpr that every device runs) are equal on all replicas.

    `check_replication` creates it. The varying analysis and the value numbering run when they are first needed.

    Args:
        jaxpr: The jaxpr of the body.
        inputs: One origin per constant and argument, in order.
        axis: The mesh axis of the replicas. None if there is only one device.
    """

    def __init__(self, jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence[Origin], axis: str | None) -> None:
        self._jaxpr = jaxpr
        self._variables = (*jaxpr.constvars, *jaxpr.invars)
        self._inputs = inputs
        self._flows = DataflowRules(axis)
        self._by_variable = dict(zip(self._variables, inputs, strict=True))

    @functools.cached_property
    def _varying(self) -> VaryingAnalysis:
        entering = [0 if origin.varies else None for origin in self._inputs]  # distances from a varying value
        return VaryingAnalysis(self._jaxpr, entering, self._flows, self._variables)

    @functools.cached_property
    def _varying_variables(self) -> Set[Any]:
        return self._varying.varying()

    @functools.cached_property
    def numbers(self) -> ValueNumbering:
        """The value numbers of the body: values with equal numbers are equal."""
        keys = [(i, None) if origin.identity is None else origin.identity for i, origin in enumerate(self._inputs)]
        return ValueNumbering(self._jaxpr, keys, self._flows)

    def check_collectives(self) -> None:
        """Raises an error if a collective is in a branch or loop that only some replicas would execute (a deadlock).

        Raises:
            MergeError: A collective is inside a branch or loop whose condition differs between replicas.
        """
        if self._flows.axis is not None:
            CollectiveSites(self._flows).check(self._jaxpr, self._varying)
        # A loop or branch that contains a collective is traced once for all virtual replicas of a device. Its condition
        # is an equation with the primitive `SAME` over the replicas' conditions. If value numbering cannot prove these
        # equal, the replicas may need different iterations or branches.
        if SAME in primitive_names(self._jaxpr) and self.numbers.unequal:
            raise mismatched_collective_error("a reduction over replicas", "a loop or branch", self.numbers.unequal[0])

    def varies(self, atom: Var | Literal) -> bool:
        """Returns whether a value of the replica program may differ between devices."""
        return self._flows.axis is not None and not isinstance(atom, Literal) and atom in self._varying_variables

    def same(self, atoms: Sequence[Any]) -> bool:
        """Returns whether the check has proven that `atoms` are equal on all replicas.

        Each atom is one virtual replica's value. All must have one value number, and none may vary between devices.
        """
        if all(0 in getattr(atom.aval, "shape", ()) for atom in atoms):
            return True  # Arrays without elements cannot differ, and collectives skip them.
        if any(map(self.varies, atoms)):
            return False
        return len(atoms) == 1 or len({self.numbers[atom] for atom in atoms}) == 1

    def path(self, atom: Var | Literal) -> list[PathStep]:
        """Returns the shortest chain of operations that made the value `atom` differ between devices.

        A long path is shortened in the middle.
        """
        trail = self._varying.trail(atom)
        steps = trail.steps
        if trail.start is not None:
            label, variable = self._inputs[trail.start].label, self._variables[trail.start]
            steps = (PathStep(label, shape=shape_of(variable)), *steps)
        return shorten(steps)

    def divergence(self, atoms: Sequence[Any]) -> list[PathStep]:
        """Returns the chain of operations that made the values of a device's virtual replicas different.

        Each of the values is equal across devices; they differ only between the virtual replicas.
        """
        first = self.numbers[atoms[0]]
        other = next(atom for atom in atoms if self.numbers[atom] != first)
        finder = Divergence(self._jaxpr, self.numbers, self._flows, self._label)
        return shorten(finder.trail(atoms[0], other))

    def explain(self, atoms: Sequence[Any]) -> str:
        """Returns, as text, the operations that made the replicas' values different, one per line.

        Returns the empty string if the values are equal.
        """
        differing = [atom for atom in atoms if self.varies(atom)]
        if not differing and self.same(atoms):
            return ""
        steps = self.path(differing[0]) if differing else self.divergence(atoms)
        return "\n".join(f"{'-> ' if i else '   '}{step}" for i, step in enumerate(steps))

    def _label(self, atom: Var | Literal) -> str:
        return f"the constant {atom.val}" if isinstance(atom, Literal) else self._by_variable[atom].label


def check_replication(
    jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence[Origin], *, axis: str | None = AXIS
) -> ReplicationCheck:
    """Returns a `ReplicationCheck` of a replica program, the jaxpr that every device runs.

    Args:
        jaxpr: The jaxpr of the body, open or closed, traced with `axis` in its axis environment.
        inputs: The origins of the constants and arguments, in order. The constants of a closed jaxpr may be omitted.
        axis: The mesh axis of the replicas. None if there is only one device. Values then differ between virtual
            replicas only.

    Returns:
        The check, which computes its answers lazily.

    Example:
        >>> import jax
        >>> body = lambda w, g: (w - jax.lax.psum(g, AXIS), w - g)
        >>> closed = jax.make_jaxpr(body, axis_env=[(AXIS, 4)])(1.0, 2.0)
        >>> check = check_replication(closed, [Origin("variable 'w'", False), Origin("the gradient", True)])
        >>> [check.varies(result) for result in closed.jaxpr.outvars]
        [False, True]
        >>> check.path(closed.jaxpr.outvars[1])[0].what
        'the gradient'
    """
    missing = len(jaxpr.constvars) + len(jaxpr.invars) - len(inputs)
    constants = map(Origin.constant, constants_of(jaxpr)) if missing else ()
    return ReplicationCheck(jaxpr, (*constants, *inputs), axis)


def shorten(steps: Sequence[PathStep]) -> list[PathStep]:
    """Shortens a chain of operations for an error message: joins steps of one source line, omits middle steps."""
    joined = [_join(list(group)) for _, group in groupby(steps, key=lambda step: step.where or id(step))]
    if len(joined) <= _LONGEST_PATH:
        return joined
    head, tail = _LONGEST_PATH // 2, _LONGEST_PATH // 2 - 1
    cut = PathStep(f"... {len(joined) - head - tail} more ...")
    return [*joined[:head], cut, *joined[-tail:]]


def _join(steps: Sequence[PathStep]) -> PathStep:
    names = list(dict.fromkeys(step.what for step in reversed(steps)))[::-1]
    if len(names) > _NAMES_PER_LINE:
        names = [names[0], "...", names[-1]]
    return dataclasses.replace(steps[-1], what=", ".join(names))


# Finds collectives that only some replicas would execute, which would deadlock.
#
# A collective is a barrier: it completes only when every device executes it. If a branch or loop has a condition that
# differs between devices, some devices skip the collectives inside, and the others wait forever. `CollectiveSites`
# raises an error for such a body before it is compiled.


class CollectiveSites:
    """Finds collectives inside branches and loops whose condition differs between devices.

    Args:
        flows: The dataflow rules of the body's equations.
    """

    def __init__(self, flows: DataflowRules) -> None:
        self._flows = flows
        self._with_collective: dict[int, Any] = {}
        self._kept: list[Any] = []  # Keeps jaxprs alive: an id identifies an object only during its lifetime.

    def check(self, jaxpr: Jaxpr | ClosedJaxpr, analysis: VaryingAnalysis) -> None:
        """Raises an error if a collective is in a branch or loop whose condition differs between devices.

        Args:
            jaxpr: The jaxpr to check.
            analysis: The values of the jaxpr that vary between devices.

        Raises:
            MergeError: A collective is in a branch or loop that some devices may execute more often than others.
        """
        if self._collective_in(jaxpr) is not None:
            varying = analysis.varying()
            for eqn, kind in self._flows.kinds(jaxpr.eqns):
                self._check_equation(eqn, kind, varying)

    def _check_inner(self, jaxpr: Jaxpr | ClosedJaxpr, differing: Sequence[bool]) -> None:
        """Checks the collectives in an equation's inner jaxpr, given which inputs vary between devices.

        Args:
            jaxpr: The jaxpr to check.
            differing: For each input, constants first, whether it varies between devices. The sequence may omit leading
                inputs; those do not vary.
        """
        if self._collective_in(jaxpr) is not None:
            inputs = (*jaxpr.constvars, *jaxpr.invars)[-len(differing) :] if differing else ()
            entering = [0 if differs else None for differs in differing]
            self.check(jaxpr, VaryingAnalysis(jaxpr, entering, self._flows, inputs))

    def _check_equation(self, eqn: JaxprEqn, kind: Kind, varying: Set[Any]) -> None:
        operands = [not isinstance(atom, Literal) and atom in varying for atom in eqn.invars]
        match kind:
            case Call(jaxpr):
                self._check_inner(jaxpr, operands)
            case Branch(branches):
                if operands[0]:
                    self._refuse(eqn, branches, "a branch")
                for branch in branches:
                    self._check_inner(branch, operands[1:])
            case Scan():
                self._check_scan(eqn, kind, operands, varying)
            case While():
                self._check_while(eqn, kind, operands, varying)
            case Plain(jaxprs):
                for jaxpr in jaxprs:
                    self._check_inner(jaxpr, _entering(eqn, operands, len(jaxpr.invars)))

    def _check_scan(self, eqn: JaxprEqn, scan: Scan, operands: Sequence[bool], varying: Set[Any]) -> None:
        # A final carry is in `varying` if the carry varies in any iteration: the analysis has reached the fixed point.
        consts, carries = scan.num_consts, scan.num_carries
        varying_carries = [var in varying for var in eqn.outvars[:carries]]
        self._check_inner(scan.jaxpr, [*operands[:consts], *varying_carries, *operands[consts + carries :]])

    def _check_while(self, eqn: JaxprEqn, loop: While, operands: Sequence[bool], varying: Set[Any]) -> None:
        varying_carries = [var in varying for var in eqn.outvars]
        of_cond = loop.num_cond_consts
        entering = [*operands[:of_cond], *varying_carries]
        (continues,) = self._flows.of_jaxpr(loop.cond)
        if continues.varies & ALWAYS or any(entering[i] for i in operands_in(continues.varies)):
            self._refuse(eqn, (loop.cond, loop.body), "a loop")
        self._check_inner(loop.cond, entering)
        self._check_inner(loop.body, [*operands[of_cond : of_cond + loop.num_body_consts], *varying_carries])

    def _refuse(self, eqn: JaxprEqn, jaxprs: Sequence[Any], what: str) -> None:
        found = next((eqn for jaxpr in jaxprs if (eqn := self._collective_in(jaxpr)) is not None), None)
        if found is None:
            return
        raise mismatched_collective_error(
            f"a reduction over replicas ({found.primitive.name}, {source_line(found)})", what, eqn
        )

    def _collective_in(self, jaxpr: Jaxpr | ClosedJaxpr) -> Any:
        """Returns the first collective in a jaxpr or its inner jaxprs; None if they contain no collective."""
        if id(jaxpr) not in self._with_collective:
            self._with_collective[id(jaxpr)] = next(self._collectives(jaxpr), None)
            self._kept.append(jaxpr)
        return self._with_collective[id(jaxpr)]

    def _collectives(self, jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[Any]:
        yield from collectives_in(jaxpr.eqns, self._flows.axis)
        for _, kind in self._flows.kinds(jaxpr.eqns):
            for inner in inner_jaxprs(kind):
                found = self._collective_in(inner)
                if found is not None:
                    yield found


def mismatched_collective_error(collective: str, what: str, eqn: JaxprEqn) -> MergeError:
    """Returns the error for a collective that would deadlock, because only some replicas execute it.

    Args:
        collective: The collective, as the message describes it.
        what: What contains it, such as ``"a branch"``.
        eqn: The equation of that branch or loop.
    """
    return MergeError(
        "Strategy.run",
        found=f"{collective} in {what} ({source_line(eqn)}) whose condition differs between replicas",
        rule="all replicas must execute the same collectives in the same order; one that only some replicas execute "
        "deadlocks",
        remedy="reduce before the branch or loop and use the result inside it, or reduce both values and select one "
        "with jnp.where",
    )


# Explains where the values of two virtual replicas of one device diverge.
#
# All virtual replicas of a device are traced into one jaxpr. What is one variable in the Python code is there a
# separate jaxpr variable for each replica. The search compares two of these.

_Pair = tuple[Any, Any]
_CameFrom = dict[tuple[int, int], tuple[_Pair, PathStep] | None]


class Divergence:
    """Searches for the operation at which the values of two replicas on the same device stop being equal.

    Args:
        jaxpr: The body into which both replicas were traced.
        numbers: The value numbers of the body.
        flows: The dataflow rules of its equations.
        label: Returns the name of an input or literal in messages.
    """

    def __init__(
        self, jaxpr: Jaxpr | ClosedJaxpr, numbers: ValueNumbering, flows: DataflowRules, label: Callable[[Any], str]
    ) -> None:
        self.numbers = numbers
        self._flows = flows
        self._label = label
        self._producers: dict[Var | Literal, tuple[JaxprEqn, int]] = {
            var: (eqn, j) for eqn in jaxpr.eqns for j, var in enumerate(eqn.outvars)
        }

    def trail(self, one: Var | Literal, other: Var | Literal) -> list[PathStep]:
        """Returns the shortest chain of operations that made the values `one` and `other` of two replicas different.

        The search goes backwards from the pair, breadth-first over pairs of corresponding operands, each visited once.
        """
        # Not keyed by value numbers: a call that returns an input unchanged gives the input and the output one number.
        came_from: _CameFrom = {_identity((one, other)): None}
        queue = deque([(one, other)])
        while queue:
            pair = queue.popleft()
            operands = list(self._differing_operands(pair))
            if not operands:
                return [self._origin(pair), *self._steps(pair, came_from)]
            step = path_step_of(*self._producers[pair[0]])
            for operand in operands:
                if _identity(operand) not in came_from:
                    came_from[_identity(operand)] = (pair, step)
                    queue.append(operand)
        raise AssertionError("every value of a jaxpr comes from its inputs")

    def _steps(self, pair: _Pair, came_from: _CameFrom) -> Iterator[PathStep]:
        while (entry := came_from[_identity(pair)]) is not None:
            pair, step = entry
            yield step

    def _differing_operands(self, pair: _Pair) -> Iterator[_Pair]:
        made = [None if isinstance(atom, Literal) else self._producers.get(atom) for atom in pair]
        if made[0] is None or made[1] is None:
            return
        (one, j), (other, j_other) = made[0], made[1]
        if j != j_other or self.numbers.operation(one) != self.numbers.operation(other):
            return
        for i in operands_in(self._flows.of(one)[j].depends):
            operands = one.invars[i], other.invars[i]
            if self.numbers[operands[0]] != self.numbers[operands[1]]:
                yield operands

    def _origin(self, pair: _Pair) -> PathStep:
        one, other = map(self._describe, pair)
        if one == other:
            return PathStep(f"{one}, of which each replica has its own")
        return PathStep(f"{one} on one replica, {other} on another replica of the same device")

    def _describe(self, atom: Var | Literal) -> str:
        if not isinstance(atom, Literal) and atom in self._producers:
            return str(path_step_of(*self._producers[atom]))
        return self._label(atom)


def _identity(pair: _Pair) -> tuple[int, int]:
    return id(pair[0]), id(pair[1])  # JAX's literals have no hash


def _entering(eqn: JaxprEqn, operands: Sequence[bool], count: int) -> Sequence[bool]:
    """Returns which of the `count` inputs of an equation's inner jaxpr vary, given which operands vary."""
    if passes_first_operands(eqn) and count <= len(operands):
        return operands[:count]
    # How such an equation (`lax.reduce`) passes its operands to its jaxprs is unknown.
    return [any(operands)] * count
