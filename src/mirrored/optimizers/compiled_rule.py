"""Compiles an optimizer's update rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from mirrored._jax.bit_identical import BitIdenticalJit
from mirrored._jax.traces import current_trace, is_eval
from mirrored.optimizers.slots import UpdatePlan, UpdateRule

# The learning rate, and the gradients, parameters, slots and extra arguments.
Operands = tuple[jax.Array | None, list[jax.Array], list[jax.Array], list[jax.Array], dict[str, Any]]
Computed = tuple[list[jax.Array], list[jax.Array]]


class CompiledRule:
    """An update rule as jitted functions, one per `UpdatePlan`, which are inlined when they are called in a trace.

    A plan is not a static argument of one function: JAX keeps static arguments in caches of the process, which would
    hold the plans of models that are gone.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule
        self._of_plan: dict[tuple[UpdatePlan, bool], Callable[..., Computed]] = {}

    def __call__(self, plan: UpdatePlan, operands: Operands, *, bit_identical: bool) -> Computed:
        """Computes one optimizer update: returns the new parameters and slots.

        Args:
            plan: Which variables the rule updates together, and with which slots.
            operands: Its operands.
            bit_identical: Whether the bits must not depend on the number of devices that hold the operands. In a trace
                the compiled function around it decides.
        """
        key = (plan, bit_identical and is_eval(current_trace()))
        compiled = self._of_plan.get(key)
        if compiled is None:
            compiled = self._of_plan.setdefault(key, self._compile(*key))
        return compiled(*operands)

    def _compile(self, plan: UpdatePlan, bit_identical: bool) -> Callable[..., Computed]:
        rule = self._rule

        def optimizer_update(*operands: *Operands) -> Computed:
            return rule(plan, *operands)

        return BitIdenticalJit(optimizer_update) if bit_identical else jax.jit(optimizer_update, inline=True)
