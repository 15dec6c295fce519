"""Finds which operands each output of a jaxpr equation depends on, and which make the output vary between devices.

Both properties are unions over operands, so a bit mask per output represents each of them. The summary of a jaxpr
does not depend on its arguments: it is computed once, and the whole analysis is linear in the size of the jaxpr. For
a loop, the analysis iterates the body's summary over the carries to a fixed point.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
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
    is_reference,
    kinds_of,
)

ALWAYS: Final = 1
"""The lowest bit of a mask: the property holds whatever the operands are. Operand `i` is bit ``i + 1``."""


@dataclasses.dataclass(frozen=True, slots=True)
class EquationDataflow:
    """The operands on which an equation's output depends, and those that can make the output vary between devices.

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
    """Computes and caches how the outputs of equations and jaxprs depend on the inputs, for one mesh axis.

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
        """Returns the class of an equation, such as loop, branch or collective; caches the result."""
        found = self._kinds.get(id(eqn))
        if found is None:
            ((_, found),) = self.kinds([eqn])
        return found

    def kinds(self, eqns: Sequence[Any]) -> list[tuple[Any, Kind]]:
        """Returns each equation of a jaxpr with its class, such as loop, branch or collective; caches the result."""
        new = [eqn for eqn in eqns if id(eqn) not in self._kinds]
        if new:
            self._kinds.update(zip(map(id, new), kinds_of(new, self.axis), strict=True))
            self._kept += new
        return [(eqn, self._kinds[id(eqn)]) for eqn in eqns]

    def of(self, eqn: JaxprEqn) -> tuple[EquationDataflow, ...]:
        """Returns, for each output of the equation `eqn`, the operands on which the output depends."""
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
            case Plain(is_separate=True):
                return tuple(identity(outputs))
            case Plain(jaxprs):
                inner = union(map(self._sources_in, jaxprs))
                return (EquationDataflow(all_operands | inner.varies, all_operands | inner.depends),) * outputs

    def distances(self, eqn: Any, operands: Sequence[int | None]) -> list[int | None]:
        """Returns how many operations separate each output from the nearest value that differs between devices.

        Args:
            eqn: The equation.
            operands: The distances of its operands; None for a replicated operand.

        Returns:
            One distance per output; None for a replicated output.
        """
        found: list[int | None] = []
        for var, flow in zip(eqn.outvars, self.of(eqn), strict=True):
            if is_empty(var):
                found.append(None)
                continue
            given = [distance for i in operands_in(flow.varies) if (distance := operands[i]) is not None]
            found.append(min(given) + 1 if given else 1 if flow.varies & ALWAYS else None)
        return found

    def of_jaxpr(self, jaxpr: Jaxpr | ClosedJaxpr) -> tuple[EquationDataflow, ...]:
        """Returns, for each output of `jaxpr`, the inputs on which the output depends.

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
            flow = NOTHING if isinstance(atom, Literal) else known.get(atom, NOTHING)
            return EquationDataflow(0, flow.depends) if flow.varies and is_empty(atom) else flow

        for eqn, kind in self.kinds(jaxpr.eqns):
            operands = [read(atom) for atom in eqn.invars]
            if isinstance(kind, Plain) and not kind.jaxprs and not kind.is_separate:
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
        """Returns the combined `EquationDataflow` of a jaxpr's device-dependent operations, such as `axis_index`.

        Such an operation (`ValueSource`) sets `ALWAYS` in `varies`; one that is not repeatable also in `depends`.
        """
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


def is_empty(atom: Var | Literal) -> bool:
    """Returns whether a value is an array without elements, which is equal on all devices."""
    return 0 in getattr(atom.aval, "shape", ())


def inner_jaxprs(kind: Kind) -> tuple[Any, ...]:
    """Returns the jaxprs inside an equation: loop bodies, conditions, branches and called functions."""
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
    """Yields the positions of the operands whose bits are set in a mask, in ascending order."""
    rest = mask >> 1
    while rest:
        lowest = rest & -rest
        yield lowest.bit_length() - 1
        rest ^= lowest


def union(flows: Iterable[EquationDataflow]) -> EquationDataflow:
    """Returns the combined dependencies of a value that depends on several others."""
    varies = depends = 0
    for flow in flows:
        varies |= flow.varies
        depends |= flow.depends
    return EquationDataflow(varies, depends)


def compose(flows: Sequence[EquationDataflow], operands: Sequence[EquationDataflow]) -> tuple[EquationDataflow, ...]:
    """Returns how outputs depend on inputs, given how outputs depend on operands and operands on inputs."""
    varies, depends = [flow.varies for flow in operands], [flow.depends for flow in operands]
    return tuple(EquationDataflow(_through(flow.varies, varies), _through(flow.depends, depends)) for flow in flows)


def close(body: Sequence[EquationDataflow], inputs: int, consts: int, carries: int) -> tuple[EquationDataflow, ...]:
    """Returns how a loop's outputs depend on its inputs after any number of iterations (the transitive closure).

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
    """Returns the dependencies of `count` outputs that are copies of consecutive operands.

    Output ``i`` is a copy of operand ``first + i``.
    """
    return [EquationDataflow(2 << i, 2 << i) for i in range(first, first + count)]


def _through(mask: int, operands: Sequence[int]) -> int:
    result = mask & ALWAYS
    for i in operands_in(mask):
        result |= operands[i]
    return result


# The results of a program that can depend on given inputs, through its calls, loops and branches.


def reached_results(jaxpr: Jaxpr, inputs: Iterable[int]) -> list[bool]:
    """Returns, for each result of a jaxpr, whether the result may depend on any of the given inputs.

    A result of a call, loop or branch depends on those operands from which it is computed there. A result whose source
    is unknown, as that of a host callback, counts as dependent on all operands of the outermost equation around it. A
    value that is stored in a mutable reference reaches all later reads of the reference.

    Args:
        jaxpr: An open or closed jaxpr.
        inputs: Positions among its inputs.
    """
    rules = DataflowRules(None)
    reached: set[Var] = {jaxpr.invars[i] for i in inputs}
    for equation, _ in rules.kinds(jaxpr.eqns):
        operands = sum(
            2 << i for i, atom in enumerate(equation.invars) if not isinstance(atom, Literal) and atom in reached
        )
        if not operands:
            continue
        flows = rules.of(equation)
        mask = operands | ALWAYS
        reached.update(one for one, flow in zip(equation.outvars, flows, strict=True) if flow.depends & mask)
        if equation.effects:
            reached.update(atom for atom in equation.invars if isinstance(atom, Var) and is_reference(atom.aval))
    return [not isinstance(atom, Literal) and atom in reached for atom in jaxpr.outvars]
