"""Varying analysis: computes which values of a jaxpr vary between devices, from the dataflow of its equations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, Final

from mirrored._jax.jaxprs import (
    Branch,
    Call,
    ClosedJaxpr,
    Equalising,
    Jaxpr,
    JaxprEqn,
    Kind,
    Literal,
    Plain,
    Scan,
    ValueSource,
    Var,
    While,
    kinds_of,
)
from mirrored._jax.source_lines import source_line

# Dataflow: computes which operands each output of an equation depends on, and which can make it vary between devices.
#
# Both properties are unions over operands, so a bit mask per output represents each of them. The summary of a jaxpr
# does not depend on its arguments: it is computed once, and the whole analysis is linear in the size of the jaxpr. For
# a loop, the analysis iterates the body's summary over the carries to a fixed point.

ALWAYS: Final = 1
"""The lowest bit of a mask: the property holds whatever the operands are. Operand `i` is bit ``i + 1``."""


@dataclasses.dataclass(frozen=True, slots=True)
class EquationDataflow:
    """Describes how one output depends on the operands.

    Attributes:
        varies: A mask. The output may vary between devices if one of these operands does. `ALWAYS` means that it varies
            in any case.
        depends: A mask. The output is computed from these operands. `ALWAYS` means that it also depends on a source
            that is not repeatable, such as a host callback.
    """

    varies: int
    depends: int


NOTHING: Final = EquationDataflow(0, 0)


class DataflowRules:
    """Computes and caches the dataflow of equations and jaxprs with respect to one mesh axis.

    Args:
        axis: The mesh axis over which devices are compared. None if there is only one device.
    """

    def __init__(self, axis: str | None) -> None:
        self.axis = axis
        self._kinds: dict[int, Kind] = {}
        self._summaries: dict[int, tuple[EquationDataflow, ...]] = {}
        self._sources: dict[int, EquationDataflow] = {}
        self._kept: list[Any] = []  # Keeps keyed objects alive: an id identifies an object only during its lifetime.

    def kind(self, eqn: JaxprEqn) -> Kind:
        """Returns `kind_of` the equation, cached."""
        found = self._kinds.get(id(eqn))
        if found is None:
            ((_, found),) = self.kinds([eqn])
        return found

    def kinds(self, eqns: Sequence[Any]) -> list[tuple[Any, Kind]]:
        """Returns equations with their kinds, cached."""
        new = [eqn for eqn in eqns if id(eqn) not in self._kinds]
        self._kinds.update(zip(map(id, new), kinds_of(new, self.axis), strict=True))
        self._kept += new
        return [(eqn, self._kinds[id(eqn)]) for eqn in eqns]

    def of(self, eqn: JaxprEqn) -> tuple[EquationDataflow, ...]:
        """Returns the dataflow of each output of `eqn` with respect to its operands."""
        kind, outputs = self.kind(eqn), len(eqn.outvars)
        all_operands = (1 << len(eqn.invars)) - 1 << 1
        match kind:
            case Call(jaxpr):
                return self.of_jaxpr(jaxpr)
            case Scan():
                return self._scan(kind)
            case While():
                return self._while(kind)
            case Branch(branches):
                return self._branch(branches)
            case Equalising():
                return (EquationDataflow(0, all_operands),) * outputs
            case ValueSource(_, repeatable):
                return (EquationDataflow(ALWAYS | all_operands, all_operands | (not repeatable)),) * outputs
            case Plain(jaxprs):
                inner = union(map(self._sources_in, jaxprs))
                return (EquationDataflow(all_operands | inner.varies, all_operands | inner.depends),) * outputs

    def of_jaxpr(self, jaxpr: Jaxpr | ClosedJaxpr) -> tuple[EquationDataflow, ...]:
        """Returns the dataflow of each output of `jaxpr` with respect to its inputs.

        The constants of the jaxpr are equal on all devices.
        """
        found = self._summaries.get(id(jaxpr))
        if found is None:
            found = self._summaries[id(jaxpr)] = self._summarise(jaxpr)
            self._kept.append(jaxpr)
        return found

    def _summarise(self, jaxpr: Jaxpr | ClosedJaxpr) -> tuple[EquationDataflow, ...]:
        known: dict[Var, EquationDataflow] = dict(zip(jaxpr.invars, identity(len(jaxpr.invars)), strict=True))

        def read(atom: Var | Literal) -> EquationDataflow:
            return NOTHING if isinstance(atom, Literal) else known.get(atom, NOTHING)

        for eqn, kind in self.kinds(jaxpr.eqns):
            operands = [read(atom) for atom in eqn.invars]
            if isinstance(kind, Plain) and not kind.jaxprs:
                known.update(dict.fromkeys(eqn.outvars, union(operands)))
            else:
                known.update(zip(eqn.outvars, compose(self.of(eqn), operands), strict=True))
        return tuple(read(atom) for atom in jaxpr.outvars)

    def _scan(self, scan: Scan) -> tuple[EquationDataflow, ...]:
        return close(self.of_jaxpr(scan.jaxpr), len(scan.jaxpr.invars), scan.num_consts, scan.num_carries)

    def _while(self, loop: While) -> tuple[EquationDataflow, ...]:
        inputs, consts = len(loop.body.invars), loop.num_body_consts
        inside = close(self.of_jaxpr(loop.body), inputs, consts, inputs - consts)
        results = compose(inside, identity(inputs, first=loop.num_cond_consts))
        (continues,) = compose(self.of_jaxpr(loop.cond), [*identity(loop.num_cond_consts), *results])
        return tuple(union((result, continues)) for result in results)

    def _branch(self, branches: Sequence[Any]) -> tuple[EquationDataflow, ...]:
        others = identity(len(branches[0].invars), first=1)
        outputs = zip(*(compose(self.of_jaxpr(branch), others) for branch in branches), strict=True)
        (index,) = identity(1)
        return tuple(union((index, *output)) for output in outputs)

    def _sources_in(self, jaxpr: Jaxpr | ClosedJaxpr) -> EquationDataflow:
        """Returns the dataflow that a jaxpr adds by itself, if it is unknown how its equation uses it."""
        found = self._sources.get(id(jaxpr))
        if found is None:
            found = self._sources[id(jaxpr)] = union(
                flow for _, kind in self.kinds(jaxpr.eqns) for flow in self._source(kind)
            )
            self._kept.append(jaxpr)
        return found

    def _source(self, kind: Kind) -> Iterator[EquationDataflow]:
        if isinstance(kind, ValueSource):
            yield EquationDataflow(ALWAYS, int(not kind.repeatable))
        for inner in inner_jaxprs(kind):
            yield self._sources_in(inner)


def inner_jaxprs(kind: Kind) -> tuple[Any, ...]:
    """Returns the jaxprs inside an equation of this kind."""
    match kind:
        case Call(jaxpr) | Scan(jaxpr):
            return (jaxpr,)
        case While(cond, _, body, _):
            return (cond, body)
        case Branch(jaxprs) | Plain(jaxprs):
            return jaxprs
        case _:
            return ()


def operands_in(mask: int) -> Iterator[int]:
    """Yields the positions of the operands in a mask, in ascending order."""
    rest = mask >> 1
    while rest:
        lowest = rest & -rest
        yield lowest.bit_length() - 1
        rest ^= lowest


def union(flows: Iterable[EquationDataflow]) -> EquationDataflow:
    """Returns the dataflow of a value that depends on all of `flows`."""
    varies = depends = 0
    for flow in flows:
        varies |= flow.varies
        depends |= flow.depends
    return EquationDataflow(varies, depends)


def compose(flows: Sequence[EquationDataflow], operands: Sequence[EquationDataflow]) -> tuple[EquationDataflow, ...]:
    """Substitutes `operands`, the dataflow of each operand, into `flows`."""
    varies, depends = [flow.varies for flow in operands], [flow.depends for flow in operands]
    return tuple(EquationDataflow(_through(flow.varies, varies), _through(flow.depends, depends)) for flow in flows)


def close(body: Sequence[EquationDataflow], inputs: int, consts: int, carries: int) -> tuple[EquationDataflow, ...]:
    """Returns the dataflow of a loop, given that of its body.

    The fixed point exists because the masks of the carries only grow.

    Args:
        body: The dataflow of the body's outputs (carries, others), over its inputs (constants, carries, others).
        inputs: The number of inputs.
        consts: The number of constants.
        carries: The number of carries.

    Returns:
        The dataflow of the loop's outputs (carries, others).
    """
    arguments = identity(inputs)
    while True:
        results = compose(body, arguments)
        carried = slice(consts, consts + carries)
        grown = [union(pair) for pair in zip(arguments[carried], results[:carries], strict=True)]
        if grown == arguments[carried]:
            return (*grown, *results[carries:])
        arguments[carried] = grown


def identity(count: int, first: int = 0) -> list[EquationDataflow]:
    """Returns the identity dataflow of `count` operands, numbered from `first`."""
    return [EquationDataflow(2 << i, 2 << i) for i in range(first, first + count)]


def _through(mask: int, operands: Sequence[int]) -> int:
    result = mask & ALWAYS
    for i in operands_in(mask):
        result |= operands[i]
    return result


# Varying analysis: computes which values of a jaxpr vary between devices, and the path by which each came to vary.
#
# The analysis reports the shortest path, because it is the easiest to follow. Paths lead into `jit`, `scan`, `while`
# and `cond`. The analysis visits inner jaxprs only when a path is requested.


@dataclasses.dataclass(frozen=True)
class PathStep:
    """One step of a path: an input or an operation.

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
    """A path within one jaxpr.

    Attributes:
        steps: The steps, from the first operation to the value.
        start: The position of the input from which it starts. None if an operation of the jaxpr is the origin.
    """

    steps: tuple[PathStep, ...]
    start: int | None


class VaryingAnalysis:
    """Computes which variables of a jaxpr vary between devices, and their distances from an origin in operations.

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
            var: distance for var, distance in zip(inputs, entering, strict=True) if distance is not None
        }
        for eqn, kind in flows.kinds(jaxpr.eqns):
            self._walk(eqn, kind)

    def varying(self) -> Set[Var]:
        """Returns the varying variables of the jaxpr."""
        return self._distance.keys()

    def distance(self, atom: Var | Literal) -> int | None:
        """Returns the distance of a variable or literal from a varying origin, or None if it is replicated."""
        return None if isinstance(atom, Literal) else self._distance.get(atom)

    def trail(self, atom: Var | Literal) -> VaryingPath:
        """Returns the shortest path from an origin to `atom`, which must be varying."""
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
    """The varying analysis of a loop body, valid after any number of iterations.

    A varying carry can make other carries vary in the next iteration. The analysis repeats until no carry is added, and
    stores for each carry the iteration that made it varying.
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
        self._iterations: dict[int, VaryingAnalysis] = {}  # By carry: the iteration that made it varying.
        changed = True
        while changed:
            self._last = VaryingAnalysis(body, self._entering, flows)
            changed = self._iterate()

    def carries(self) -> list[int | None]:
        """Returns the distances of the carries."""
        return [self._entering[i] for i in self._carried]

    def path_to(self, j: int) -> _OperandPath:
        """Returns the path to output `j` of the loop.

        Each step goes to the iteration that made the carry varying, which is an earlier one, so the path is finite.
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
        """Marks the carries that the last iteration made varying. Returns whether there are any."""
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
    """Returns the steps of a call, with the line of the call where a step has none.

    JAX traces its own helpers once and caches the jaxprs, whose equations therefore have no line of user code.
    """
    origins = 1 if trail.start is None else 0
    located = (dataclasses.replace(step, where=step.where or line) for step in trail.steps[origins:])
    return *trail.steps[:origins], *located


def path_step_of(eqn: JaxprEqn, j: int) -> PathStep:
    """Returns the step from the operands of `eqn` to its output `j`."""
    called = eqn.params.get("name")
    what = f"{eqn.primitive.name} {called}" if isinstance(called, str) else eqn.primitive.name
    return PathStep(what, source_line(eqn), shape_of(eqn.outvars[j]))


def shape_of(atom: Var | Literal) -> str:
    """Returns the type of a value in short form, such as ``f32[8, 3]``."""
    return str(getattr(atom.aval, "str_short", lambda **_: str(atom.aval))(short_dtypes=True))


def _nearest(distances: Iterable[int | None]) -> int | None:
    return min((distance for distance in distances if distance is not None), default=None)
