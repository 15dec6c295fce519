"""Finds collectives that only some replicas would execute, which would deadlock.

A collective is a barrier: it completes only when every device executes it. If a branch or loop has a condition that
differs between devices, some devices skip the collectives inside, and the others wait forever. This module raises an
error for such a body while it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mirrored._jax.jaxprs import Branch, Call, Literal, Plain, Scan, While, is_collective
from mirrored._jax.sources import source_line
from mirrored.analysis.dataflow import ALWAYS, DataflowRules, inner_jaxprs, operands_in
from mirrored.errors import MergeError

_Differs = Callable[[Any], bool]


class CollectiveSites:
    """Finds collectives inside branches and loops whose condition varies between devices.

    Args:
        flows: The dataflow rules of the body's equations.
    """

    def __init__(self, flows: DataflowRules) -> None:
        self._flows = flows
        self._with_collective: dict[int, Any] = {}
        self._kept: list[Any] = []  # Keeps jaxprs alive: an id identifies an object only during its lifetime.

    def check(self, jaxpr: Any, differing: Sequence[bool]) -> None:
        """Checks one jaxpr.

        Args:
            jaxpr: The jaxpr to check.
            differing: For each input, constants first, whether it varies between devices. It may omit leading inputs;
                those do not vary.

        Raises:
            MergeError: A collective is in a branch or loop that some devices may execute more often than others.
        """
        if self._collective_in(jaxpr) is None:
            return
        inputs = (*jaxpr.constvars, *jaxpr.invars)[-len(differing) :] if differing else ()
        known = {var for var, differs in zip(inputs, differing, strict=True) if differs}

        def differs(atom: Any) -> bool:
            return not isinstance(atom, Literal) and atom in known

        for eqn in jaxpr.eqns:
            self._check_equation(eqn, differs)
            known.update(self._differing_results(eqn, differs))

    def _check_equation(self, eqn: Any, differs: _Differs) -> None:
        kind, operands = self._flows.kind(eqn), [differs(atom) for atom in eqn.invars]
        match kind:
            case Call(jaxpr):
                self.check(jaxpr, operands)
            case Branch(branches):
                if operands[0]:
                    self._refuse(eqn, branches, "a branch")
                for branch in branches:
                    self.check(branch, operands[1:])
            case Scan():
                self._check_scan(eqn, kind, operands, set(self._differing_results(eqn, differs)))
            case While():
                self._check_while(eqn, kind, operands, set(self._differing_results(eqn, differs)))
            case Plain(jaxprs):
                for jaxpr in jaxprs:
                    if len(jaxpr.invars) == len(operands):
                        self.check(jaxpr, operands)

    def _check_scan(self, eqn: Any, scan: Scan, operands: Sequence[bool], differing: set[Any]) -> None:
        consts, carries = scan.num_consts, scan.num_carries
        varying_carries = [var in differing for var in eqn.outvars[:carries]]
        self.check(scan.jaxpr, [*operands[:consts], *varying_carries, *operands[consts + carries :]])

    def _check_while(self, eqn: Any, loop: While, operands: Sequence[bool], differing: set[Any]) -> None:
        varying_carries = [var in differing for var in eqn.outvars]
        of_cond = loop.num_cond_consts
        entering = [*operands[:of_cond], *varying_carries]
        (continues,) = self._flows.of_jaxpr(loop.cond)
        if continues.varies & ALWAYS or any(entering[i] for i in operands_in(continues.varies)):
            self._refuse(eqn, (loop.cond, loop.body), "a loop")
        self.check(loop.cond, entering)
        self.check(loop.body, [*operands[of_cond : of_cond + loop.num_body_consts], *varying_carries])

    def _differing_results(self, eqn: Any, differs: _Differs) -> Iterator[Any]:
        operands = [differs(atom) for atom in eqn.invars]
        for var, flow in zip(eqn.outvars, self._flows.of(eqn), strict=True):
            if flow.varies & ALWAYS or any(operands[i] for i in operands_in(flow.varies)):
                yield var

    def _refuse(self, eqn: Any, jaxprs: Sequence[Any], what: str) -> None:
        found = next((eqn for jaxpr in jaxprs if (eqn := self._collective_in(jaxpr)) is not None), None)
        if found is None:
            return
        raise mismatched(f"a reduction over replicas ({found.primitive.name}, {source_line(found)})", what, eqn)

    def _collective_in(self, jaxpr: Any) -> Any:
        """Returns the first collective of a jaxpr, at any depth, or None."""
        if id(jaxpr) not in self._with_collective:
            self._with_collective[id(jaxpr)] = next(self._collectives(jaxpr), None)
            self._kept.append(jaxpr)
        return self._with_collective[id(jaxpr)]

    def _collectives(self, jaxpr: Any) -> Iterator[Any]:
        for eqn in jaxpr.eqns:
            if is_collective(eqn, self._flows.axis):
                yield eqn
            for inner in inner_jaxprs(self._flows.kind(eqn)):
                found = self._collective_in(inner)
                if found is not None:
                    yield found


def mismatched(collective: str, what: str, eqn: Any) -> MergeError:
    """Returns the error for a collective that only some replicas would execute.

    Args:
        collective: The collective, as the message describes it.
        what: What contains it, such as ``"a branch"``.
        eqn: The equation of that branch or loop.
    """
    return MergeError(
        "Strategy.run",
        found=f"{collective} in {what} ({source_line(eqn)}) whose condition differs between replicas",
        rule="all replicas execute the same collectives in the same order; one that only some replicas execute "
        "deadlocks",
        remedy="reduce before the branch or loop and use the result inside it, or reduce both values and select one "
        "with jnp.where",
    )
