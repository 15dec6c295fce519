"""How difference between devices spreads through a jaxpr, and the path by which it reached a value.

The shortest path is told, since it is the one a reader can follow. Paths go into `jit`, `scan`, `while` and `cond`;
inner jaxprs are walked only when a path is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from mirrored._jax.jaxprs import Branch, Call, Kind, Literal, Plain, Scan, ValueSource, Var, While
from mirrored._jax.sources import source_line
from mirrored.analysis.dataflow import ALWAYS, DataflowRules, operands_in


@dataclasses.dataclass(frozen=True)
class PathStep:
    """One station on the way of a value.

    Attributes:
        what: An input's label, or the operation: ``"dot_general"``.
        where: The line of user code, ``"train.py:12"``; None if there is none.
        shape: The value after it, ``"f32[8, 3]"``; empty if it has none.
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
    """A path inside one jaxpr.

    Attributes:
        steps: From the first operation to the value.
        start: The number of the input it starts from; None if an operation in it is the origin.
    """

    steps: tuple[PathStep, ...]
    start: int | None


class VaryingAnalysis:
    """Which variables of a jaxpr differ between devices, and how many operations each is away from an origin.

    Args:
        jaxpr: Walked once, in order.
        entering: Per input, its distance from an origin, None for an input that is the same everywhere.
        flows: The flows of its equations.
        inputs: The inputs meant, if not the jaxpr's arguments.
    """

    def __init__(
        self, jaxpr: Any, entering: Sequence[int | None], flows: DataflowRules, inputs: Sequence[Any] | None = None
    ) -> None:
        inputs = jaxpr.invars if inputs is None else inputs
        self._jaxpr = jaxpr
        self._flows = flows
        self._inputs = {var: i for i, var in enumerate(inputs)}
        self._producers: dict[Var, tuple[Any, int]] | None = None
        self._distance: dict[Var, int] = {
            var: distance for var, distance in zip(inputs, entering, strict=True) if distance is not None
        }
        for eqn in jaxpr.eqns:
            self._walk(eqn)

    def distance(self, atom: Any) -> int | None:
        """How far a variable or literal is from an origin of difference; None if it is the same everywhere."""
        return None if isinstance(atom, Literal) else self._distance.get(atom)

    def trail(self, atom: Any) -> VaryingPath:
        """The shortest path from an origin to `atom`, which differs."""
        steps: list[PathStep] = []
        while atom not in self._inputs:
            eqn, j = self._producer(atom)
            inner, operand = self._enter(eqn, j)
            steps[:0] = inner
            if operand is None:
                return VaryingPath(tuple(steps), None)
            atom = eqn.invars[operand]
        return VaryingPath(tuple(steps), self._inputs[atom])

    def _walk(self, eqn: Any) -> None:
        kind = self._flows.kind(eqn)
        distances = [self.distance(atom) for atom in eqn.invars]
        if isinstance(kind, Plain) and not kind.jaxprs:
            nearest = _nearest(distances)
            if nearest is not None:
                self._distance.update(dict.fromkeys(eqn.outvars, nearest + 1))
            return
        for var, flow in zip(eqn.outvars, self._flows.of(eqn), strict=True):
            reached = _nearest(distances[i] for i in operands_in(flow.varies))
            if reached is not None:
                self._distance[var] = reached + 1
            elif flow.varies & ALWAYS:
                self._distance[var] = 1

    def _producer(self, var: Any) -> tuple[Any, int]:
        if self._producers is None:
            self._producers = {var: (eqn, j) for eqn in self._jaxpr.eqns for j, var in enumerate(eqn.outvars)}
        return self._producers[var]

    def _enter(self, eqn: Any, j: int) -> _Way:
        distances = [self.distance(atom) for atom in eqn.invars]
        kind = self._flows.kind(eqn)
        match kind:
            case Call(jaxpr):
                trail = VaryingAnalysis(jaxpr, distances, self._flows).trail(jaxpr.outvars[j])
                return _placed(trail, source_line(eqn)), trail.start
            case Scan(jaxpr, consts, carries):
                steps, start = _LoopVarying(jaxpr, distances, consts, carries, self._flows).way_to(j)
                return (*steps, path_step_of(eqn, j)), start
            case While():
                return _enter_while(kind, j, distances, path_step_of(eqn, j), self._flows)
            case Branch(branches):
                return _enter_branch(branches, j, distances, path_step_of(eqn, j), self._flows)
            case _:
                return self._pass(eqn, j, kind, distances)

    def _pass(self, eqn: Any, j: int, kind: Kind, distances: Sequence[int | None]) -> _Way:
        operands = operands_in(self._flows.of(eqn)[j].varies)
        differing = [(distance, i) for i in operands if (distance := distances[i]) is not None]
        if differing:
            return (path_step_of(eqn, j),), min(differing)[1]
        label = kind.label if isinstance(kind, ValueSource) else f"something inside {eqn.primitive.name}"
        return (PathStep(label), path_step_of(eqn, j)), None


_Way = tuple[Sequence[PathStep], int | None]
"""Steps to an output of an equation, and the operand from which they start (None: from inside)."""


class _LoopVarying:
    """The body of a loop, with the distances that its carries have after any number of turns."""

    def __init__(
        self, body: Any, distances: Sequence[int | None], consts: int, carries: int, flows: DataflowRules
    ) -> None:
        self._body = body
        self._initial = distances
        self._carried = range(consts, consts + carries)
        self._entering = list(distances)
        self._turns: dict[int, VaryingAnalysis] = {}  # by carry: the turn in which it came to differ
        growing = True
        while growing:
            self._last = VaryingAnalysis(body, self._entering, flows)
            growing = self._turn()

    def carries(self) -> list[int | None]:
        """The distances of the carries."""
        return [self._entering[i] for i in self._carried]

    def way_to(self, j: int) -> _Way:
        """The way to output `j` of the loop. It goes back turn by turn, so that it ends."""
        steps: tuple[PathStep, ...] = ()
        turn = self._turns.get(j, self._last)
        while turn.distance(self._body.outvars[j]) is not None:
            trail = turn.trail(self._body.outvars[j])
            steps = (*trail.steps, *steps)
            if trail.start is None or self._initial[trail.start] is not None:
                return steps, trail.start
            j = trail.start - self._carried.start
            turn = self._turns[j]
        return steps, self._carried[j]

    def _turn(self) -> bool:
        """Marks the carries that came to differ in the last turn; whether there are any."""
        reached = [self._last.distance(left) for left in self._body.outvars[: len(self._carried)]]
        fresh = [j for j, i in enumerate(self._carried) if self._entering[i] is None and reached[j] is not None]
        for j in fresh:
            self._entering[self._carried[j]] = reached[j]
            self._turns[j] = self._last
        return bool(fresh)


def _enter_while(loop: While, j: int, distances: Sequence[int | None], step: PathStep, flows: DataflowRules) -> _Way:
    first, carries = loop.num_cond_consts, len(loop.body.outvars)
    inside = _LoopVarying(loop.body, distances[first:], loop.num_body_consts, carries, flows)
    if inside.carries()[j] is not None:
        steps, start = inside.way_to(j)
        return (*steps, step), None if start is None else start + first
    goes_on = VaryingAnalysis(loop.cond, [*distances[:first], *inside.carries()], flows).trail(loop.cond.outvars[0])
    turns = (*goes_on.steps, dataclasses.replace(step, what="while whose number of turns differs"))
    if goes_on.start is None or goes_on.start < first:
        return turns, goes_on.start
    steps, start = inside.way_to(goes_on.start - first)
    return (*steps, *turns), None if start is None else start + first


def _enter_branch(
    branches: Sequence[Any], j: int, distances: Sequence[int | None], step: PathStep, flows: DataflowRules
) -> _Way:
    if distances[0] is not None:
        return (dataclasses.replace(step, what="cond whose branch differs"),), 0
    for jaxpr in branches:
        inside = VaryingAnalysis(jaxpr, distances[1:], flows)
        if inside.distance(jaxpr.outvars[j]) is not None:
            trail = inside.trail(jaxpr.outvars[j])
            return (*trail.steps, step), None if trail.start is None else trail.start + 1
    raise AssertionError("an output of cond differs only by its index or by a branch")


def _placed(trail: VaryingPath, line: str | None) -> Sequence[PathStep]:
    """The steps of a call, where they know no line with that of the call: JAX's own helpers are traced once for all."""
    origins = 1 if trail.start is None else 0
    placed = (dataclasses.replace(step, where=step.where or line) for step in trail.steps[origins:])
    return *trail.steps[:origins], *placed


def path_step_of(eqn: Any, j: int) -> PathStep:
    """The step that `eqn` makes on the way to its output `j`."""
    called = eqn.params.get("name")
    what = f"{eqn.primitive.name} {called}" if isinstance(called, str) else eqn.primitive.name
    return PathStep(what, source_line(eqn), shape_of(eqn.outvars[j]))


def shape_of(atom: Any) -> str:
    """``f32[8, 3]``."""
    return str(getattr(atom.aval, "str_short", lambda **_: str(atom.aval))(short_dtypes=True))


def _nearest(distances: Iterable[int | None]) -> int | None:
    return min((distance for distance in distances if distance is not None), default=None)
