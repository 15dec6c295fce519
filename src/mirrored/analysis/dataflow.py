"""On which operands each output of an equation depends, and through which of them differences between devices pass.

Both are unions over operands, so one bit mask per output says all: a jaxpr is summarised once, whatever it is called
with, and the whole analysis is linear in its size. Loops take the closure over their carries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from mirrored._jax.jaxprs import Branch, Call, Equalising, Kind, Literal, Plain, Scan, ValueSource, Var, While, kind_of

ALWAYS: Final = 1
"""The lowest bit of a mask: by itself, whatever the operands are. Operand `i` is the bit ``i + 1``."""


@dataclasses.dataclass(frozen=True, slots=True)
class EquationDataflow:
    """How one output depends on the operands.

    Attributes:
        varies: It differs between devices if an operand in this mask does (`ALWAYS`: in any case).
        depends: Its value is computed from these operands (`ALWAYS`: and from something unrepeatable).
    """

    varies: int
    depends: int


NOTHING: Final = EquationDataflow(0, 0)


class DataflowRules:
    """The flows of equations and jaxprs, seen from one mesh axis; each jaxpr is summarised once.

    Args:
        axis: The mesh axis over which devices are compared; None if there is one device only.
    """

    def __init__(self, axis: str | None) -> None:
        self.axis = axis
        self._kinds: dict[int, Kind] = {}
        self._summaries: dict[int, tuple[EquationDataflow, ...]] = {}
        self._sources: dict[int, EquationDataflow] = {}
        self._kept: list[Any] = []  # an id is a key only as long as its object lives

    def kind(self, eqn: Any) -> Kind:
        """`kind_of` the equation, remembered."""
        found = self._kinds.get(id(eqn))
        if found is None:
            found = self._kinds[id(eqn)] = kind_of(eqn, self.axis)
            self._kept.append(eqn)
        return found

    def of(self, eqn: Any) -> tuple[EquationDataflow, ...]:
        """One flow per output of `eqn`, over its operands."""
        kind, outputs = self.kind(eqn), len(eqn.outvars)
        every = (1 << len(eqn.invars)) - 1 << 1
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
                return (EquationDataflow(0, every),) * outputs
            case ValueSource(_, repeatable):
                return (EquationDataflow(ALWAYS | every, every | (not repeatable)),) * outputs
            case Plain(jaxprs):
                inner = union(map(self._sources_in, jaxprs))
                return (EquationDataflow(every | inner.varies, every | inner.depends),) * outputs

    def of_jaxpr(self, jaxpr: Any) -> tuple[EquationDataflow, ...]:
        """One flow per output of `jaxpr`, over its inputs (its constants are the same everywhere)."""
        found = self._summaries.get(id(jaxpr))
        if found is None:
            found = self._summaries[id(jaxpr)] = self._summarise(jaxpr)
            self._kept.append(jaxpr)
        return found

    def _summarise(self, jaxpr: Any) -> tuple[EquationDataflow, ...]:
        known: dict[Var, EquationDataflow] = dict(zip(jaxpr.invars, identity(len(jaxpr.invars)), strict=True))

        def read(atom: Any) -> EquationDataflow:
            return NOTHING if isinstance(atom, Literal) else known.get(atom, NOTHING)

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            kind = self.kind(eqn)
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
        (goes_on,) = compose(self.of_jaxpr(loop.cond), [*identity(loop.num_cond_consts), *results])
        return tuple(union((result, goes_on)) for result in results)

    def _branch(self, branches: Sequence[Any]) -> tuple[EquationDataflow, ...]:
        others = identity(len(branches[0].invars), first=1)
        outputs = zip(*(compose(self.of_jaxpr(branch), others) for branch in branches), strict=True)
        (chooses,) = identity(1)
        return tuple(union((chooses, *output)) for output in outputs)

    def _sources_in(self, jaxpr: Any) -> EquationDataflow:
        """What a jaxpr of unknown use brings in by itself."""
        found = self._sources.get(id(jaxpr))
        if found is None:
            found = self._sources[id(jaxpr)] = union(flow for eqn in jaxpr.eqns for flow in self._source(eqn))
            self._kept.append(jaxpr)
        return found

    def _source(self, eqn: Any) -> Iterator[EquationDataflow]:
        kind = self.kind(eqn)
        if isinstance(kind, ValueSource):
            yield EquationDataflow(ALWAYS, int(not kind.repeatable))
        for inner in inner_jaxprs(kind):
            yield self._sources_in(inner)


def inner_jaxprs(kind: Kind) -> tuple[Any, ...]:
    """The jaxprs inside an equation of this kind."""
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
    """The numbers of the operands in a mask, ascending."""
    rest = mask >> 1
    while rest:
        lowest = rest & -rest
        yield lowest.bit_length() - 1
        rest ^= lowest


def union(flows: Iterable[EquationDataflow]) -> EquationDataflow:
    """What depends on all of `flows`."""
    varies = depends = 0
    for flow in flows:
        varies |= flow.varies
        depends |= flow.depends
    return EquationDataflow(varies, depends)


def compose(flows: Sequence[EquationDataflow], operands: Sequence[EquationDataflow]) -> tuple[EquationDataflow, ...]:
    """`flows` over operands that themselves are `operands` over something else."""
    varies, depends = [flow.varies for flow in operands], [flow.depends for flow in operands]
    return tuple(EquationDataflow(_through(flow.varies, varies), _through(flow.depends, depends)) for flow in flows)


def close(body: Sequence[EquationDataflow], inputs: int, consts: int, carries: int) -> tuple[EquationDataflow, ...]:
    """The flows of a loop from those of its body: (constants, carries, others) -> (carries, others)."""
    entering = identity(inputs)
    while True:
        leaving = compose(body, entering)
        carried = slice(consts, consts + carries)
        grown = [union(pair) for pair in zip(entering[carried], leaving[:carries], strict=True)]
        if grown == entering[carried]:
            return (*grown, *leaving[carries:])
        entering[carried] = grown


def identity(count: int, first: int = 0) -> list[EquationDataflow]:
    """The flows of `count` operands, numbered from `first`, into themselves."""
    return [EquationDataflow(2 << i, 2 << i) for i in range(first, first + count)]


def _through(mask: int, operands: Sequence[int]) -> int:
    result = mask & ALWAYS
    for i in operands_in(mask):
        result |= operands[i]
    return result
