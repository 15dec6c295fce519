"""Finds the values of a jaxpr that differ between devices, and the operations that made the values different.

The analysis reports the shortest path, because it is the easiest to follow. Paths lead into `jit`, `scan`, `while`
and `cond`. The analysis visits inner jaxprs only when a path is requested.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence, Set
from typing import Any

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
)
from mirrored._jax.source_lines import source_line
from mirrored.analysis.dataflow import DataflowRules, is_empty, operands_in


@dataclasses.dataclass(frozen=True)
class PathStep:
    """One step in a chain of operations by which a value became different between devices.

    Attributes:
        what: The label of the input, or the name of the operation, such as ``"dot_general"``.
        where: The line of user code, such as ``"train.py:12"``, or None if it is unknown.
        shape: The type of the resulting value, such as ``"f32[8, 3]"``. Empty if there is no value.
    """

    what: str
    where: str | None = None
    shape: str = ""

    def __str__(self) -> str:
        shape = f" {self.shape}" if self.shape else ""
        where = f" ({self.where})" if self.where else ""
        return f"{self.what}{shape}{where}"


@dataclasses.dataclass(frozen=True)
class VaryingPath:
    """The chain of operations in one jaxpr by which a value became different between devices.

    Attributes:
        steps: The steps, from the first operation to the value.
        start: The position of the input from which it starts. None if an operation of the jaxpr is the origin.
    """

    steps: tuple[PathStep, ...]
    start: int | None


class VaryingAnalysis:
    """Finds the values of a jaxpr that may differ between devices, and their distances (in operations) from the cause.

    The distance is the number of operations from the nearest origin: an input that varies, or an operation whose result
    varies whatever its operands are.

    Args:
        jaxpr: The jaxpr. It is visited once, in order.
        entering: For each input its distance from an origin, or None if the input is replicated.
        flows: The dataflow rules of its equations.
        inputs: The input variables that `entering` refers to. The default is the arguments of the jaxpr.
    """

    def __init__(
        self,
        jaxpr: Jaxpr | ClosedJaxpr,
        entering: Sequence[int | None],
        flows: DataflowRules,
        inputs: Sequence[Any] | None = None,
    ) -> None:
        inputs = jaxpr.invars if inputs is None else inputs
        self._jaxpr = jaxpr
        self._flows = flows
        self._inputs = {var: i for i, var in enumerate(inputs)}
        self._producers: dict[Var | Literal, tuple[Any, int]] | None = None
        self._distance: dict[Var, int] = {
            var: distance
            for var, distance in zip(inputs, entering, strict=True)
            if distance is not None and not is_empty(var)
        }
        for eqn, kind in flows.kinds(jaxpr.eqns):
            self._walk(eqn, kind)

    def varying(self) -> Set[Var]:
        """Returns the variables of the jaxpr whose values may differ between devices."""
        return self._distance.keys()

    def distance(self, atom: Var | Literal) -> int | None:
        """Returns how many operations separate a value from the cause of its variation; None for a replicated value."""
        return None if isinstance(atom, Literal) else self._distance.get(atom)

    def trail(self, atom: Var | Literal) -> VaryingPath:
        """Returns the shortest chain of operations that made the value `atom` differ between devices."""
        steps: list[PathStep] = []
        while atom not in self._inputs:
            eqn, j = self._producer(atom)
            inner, operand = self._enter(eqn, j)
            steps[:0] = inner
            if operand is None:
                return VaryingPath(tuple(steps), None)
            atom = eqn.invars[operand]
        return VaryingPath(tuple(steps), self._inputs[atom])

    def _walk(self, eqn: JaxprEqn, kind: Kind) -> None:
        distances = [self.distance(atom) for atom in eqn.invars]
        if isinstance(kind, Plain) and not kind.jaxprs and not kind.is_separate:
            nearest = _nearest(distances)
            if nearest is not None:
                self._distance.update((var, nearest + 1) for var in eqn.outvars if not is_empty(var))
            return
        found = zip(eqn.outvars, self._flows.distances(eqn, distances), strict=True)
        self._distance.update([(var, distance) for var, distance in found if distance is not None])

    def _producer(self, var: Var | Literal) -> tuple[Any, int]:
        if self._producers is None:
            self._producers = {var: (eqn, j) for eqn in self._jaxpr.eqns for j, var in enumerate(eqn.outvars)}
        return self._producers[var]

    def _enter(self, eqn: JaxprEqn, j: int) -> _OperandPath:
        distances = [self.distance(atom) for atom in eqn.invars]
        kind = self._flows.kind(eqn)
        match kind:
            case Call(jaxpr):
                trail = VaryingAnalysis(jaxpr, distances, self._flows).trail(jaxpr.outvars[j])
                return _with_lines(trail, source_line(eqn)), trail.start
            case Scan(jaxpr, consts, carries):
                steps, start = _LoopVarying(jaxpr, distances, consts, carries, self._flows).path_to(j)
                return (*steps, path_step_of(eqn, j)), start
            case While():
                return _enter_while(kind, j, distances, path_step_of(eqn, j), self._flows)
            case Branch(branches):
                return _enter_branch(branches, j, distances, path_step_of(eqn, j), self._flows)
            case _:
                return self._pass(eqn, j, kind, distances)

    def _pass(self, eqn: JaxprEqn, j: int, kind: Kind, distances: Sequence[int | None]) -> _OperandPath:
        operands = operands_in(self._flows.of(eqn)[j].varies)
        varying = [(distance, i) for i in operands if (distance := distances[i]) is not None]
        if varying:
            return (path_step_of(eqn, j),), min(varying)[1]
        label = kind.label if isinstance(kind, ValueSource) else f"an operation inside {eqn.primitive.name}"
        return (PathStep(label), path_step_of(eqn, j)), None


_OperandPath = tuple[Sequence[PathStep], int | None]
"""The steps to an output of an equation, and the operand from which they start (None: the origin is inside)."""


class _LoopVarying:
    """The varying analysis of a loop's body, repeated until no further carry becomes varying.

    A varying carry can make other carries vary in the next iteration. The analysis makes passes over the body until no
    carry is added, and stores for each carry the pass in which it became varying.
    """

    def __init__(
        self,
        body: Jaxpr | ClosedJaxpr,
        distances: Sequence[int | None],
        consts: int,
        carries: int,
        flows: DataflowRules,
    ) -> None:
        self._body = body
        self._initial = distances
        self._carried = range(consts, consts + carries)
        self._entering = list(distances)
        self._iterations: dict[int, VaryingAnalysis] = {}  # By carry: the pass in which it became varying.
        changed = True
        while changed:
            self._last = VaryingAnalysis(body, self._entering, flows)
            changed = self._iterate()

    def carries(self) -> list[int | None]:
        """Returns how many operations separate each loop carry from the nearest value that differs between devices.

        The number is None for a replicated carry.
        """
        return [self._entering[i] for i in self._carried]

    def path_to(self, j: int) -> _OperandPath:
        """Returns the chain of operations by which output `j` of the loop became different between devices.

        From each carry the path continues in the pass in which that carry became varying. Each of these passes is
        earlier than the previous one on the path, so the path is finite.
        """
        steps: tuple[PathStep, ...] = ()
        iteration = self._iterations.get(j, self._last)
        while iteration.distance(self._body.outvars[j]) is not None:
            trail = iteration.trail(self._body.outvars[j])
            steps = (*trail.steps, *steps)
            if trail.start is None or self._initial[trail.start] is not None:
                return steps, trail.start
            j = trail.start - self._carried.start
            iteration = self._iterations[j]
        return steps, self._carried[j]

    def _iterate(self) -> bool:
        """Marks the loop carries that became varying in the last iteration, and returns whether there are any."""
        reached = [self._last.distance(left) for left in self._body.outvars[: len(self._carried)]]
        added = [j for j, i in enumerate(self._carried) if self._entering[i] is None and reached[j] is not None]
        for j in added:
            self._entering[self._carried[j]] = reached[j]
            self._iterations[j] = self._last
        return bool(added)


def _enter_while(
    loop: While, j: int, distances: Sequence[int | None], step: PathStep, flows: DataflowRules
) -> _OperandPath:
    first, carries = loop.num_cond_consts, len(loop.body.outvars)
    inside = _LoopVarying(loop.body, distances[first:], loop.num_body_consts, carries, flows)
    if inside.carries()[j] is not None:
        steps, start = inside.path_to(j)
        return (*steps, step), None if start is None else start + first
    condition = VaryingAnalysis(loop.cond, [*distances[:first], *inside.carries()], flows).trail(loop.cond.outvars[0])
    iterations = (*condition.steps, dataclasses.replace(step, what="while with a varying number of iterations"))
    if condition.start is None or condition.start < first:
        return iterations, condition.start
    steps, start = inside.path_to(condition.start - first)
    return (*steps, *iterations), None if start is None else start + first


def _enter_branch(
    branches: Sequence[Any], j: int, distances: Sequence[int | None], step: PathStep, flows: DataflowRules
) -> _OperandPath:
    if distances[0] is not None:
        return (dataclasses.replace(step, what="cond with a varying branch index"),), 0
    for jaxpr in branches:
        inside = VaryingAnalysis(jaxpr, distances[1:], flows)
        if inside.distance(jaxpr.outvars[j]) is not None:
            trail = inside.trail(jaxpr.outvars[j])
            return (*trail.steps, step), None if trail.start is None else trail.start + 1
    raise AssertionError("an output of cond varies only by its index or by a branch")


def _with_lines(trail: VaryingPath, line: str | None) -> Sequence[PathStep]:
    """Returns the steps of a path, with `line` in place of missing source lines.

    The path is inside a call, and `line` is that of the call. JAX traces its own helpers once and caches the jaxprs,
    whose equations therefore have no line of user code. The label of an origin gets no line.
    """
    origins = 1 if trail.start is None else 0
    located = (dataclasses.replace(step, where=step.where or line) for step in trail.steps[origins:])
    return *trail.steps[:origins], *located


def path_step_of(eqn: JaxprEqn, j: int) -> PathStep:
    """Returns the operation name, source line and output type of an equation as a `PathStep`."""
    called = eqn.params.get("name")
    what = f"{eqn.primitive.name} {called}" if isinstance(called, str) else eqn.primitive.name
    return PathStep(what, source_line(eqn), shape_of(eqn.outvars[j]))


def shape_of(atom: Var | Literal) -> str:
    """Returns the dtype and shape of a value in short form, such as ``f32[8, 3]``."""
    return str(getattr(atom.aval, "str_short", lambda **_: str(atom.aval))(short_dtypes=True))


def _nearest(distances: Iterable[int | None]) -> int | None:
    return min((distance for distance in distances if distance is not None), default=None)
