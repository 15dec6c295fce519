"""Finds which results of a program can depend on given inputs, through its calls, loops and branches."""

from __future__ import annotations

from collections.abc import Iterable

from mirrored._jax.jaxprs import Jaxpr, Literal, Var, is_reference
from mirrored.analysis.dataflow import ALWAYS, DataflowRules


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
