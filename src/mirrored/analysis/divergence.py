"""Explains where the values of two virtual replicas of one device diverge.

All virtual replicas of a device are traced into one jaxpr, so the same variable of two replicas is two values of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mirrored._jax.jaxprs import Literal
from mirrored.analysis.dataflow import DataflowRules, operands_in
from mirrored.analysis.value_numbering import ValueNumbering
from mirrored.analysis.varying import PathStep, path_step_of

_Pair = tuple[Any, Any]


class Divergence:
    """Traces two values with different value numbers back to the origin of their difference.

    Args:
        jaxpr: The body into which both replicas were traced.
        numbers: The value numbers of the body.
        flows: The dataflow rules of its equations.
        label: Returns the name of an input or literal in messages.
    """

    def __init__(self, jaxpr: Any, numbers: ValueNumbering, flows: DataflowRules, label: Callable[[Any], str]) -> None:
        self._numbers = numbers
        self._flows = flows
        self._label = label
        self._producers = {var: (eqn, j) for eqn in jaxpr.eqns for j, var in enumerate(eqn.outvars)}

    def trail(self, one: Any, other: Any) -> list[PathStep]:
        """Returns the shortest path from the origin of the difference to `one`.

        The search is breadth-first over pairs of corresponding operands. It visits each pair of value numbers once.
        """
        came_from: dict[tuple[int, int], tuple[_Pair, PathStep] | None] = {self._key((one, other)): None}
        queue = deque([(one, other)])
        while queue:
            pair = queue.popleft()
            operands = list(self._differing_operands(pair))
            if not operands:
                return [self._origin(pair), *self._steps(pair, came_from)]
            step = path_step_of(*self._producers[pair[0]])
            for operand in operands:
                if self._key(operand) not in came_from:
                    came_from[self._key(operand)] = (pair, step)
                    queue.append(operand)
        raise AssertionError("every value of a jaxpr comes from its inputs")

    def _key(self, pair: _Pair) -> tuple[int, int]:
        return self._numbers[pair[0]], self._numbers[pair[1]]

    def _steps(
        self, pair: _Pair, came_from: dict[tuple[int, int], tuple[_Pair, PathStep] | None]
    ) -> Iterator[PathStep]:
        while (entry := came_from[self._key(pair)]) is not None:
            pair, step = entry
            yield step

    def _differing_operands(self, pair: _Pair) -> Iterator[_Pair]:
        made = [None if isinstance(atom, Literal) else self._producers.get(atom) for atom in pair]
        if made[0] is None or made[1] is None:
            return
        (one, j), (other, j_other) = made[0], made[1]
        if j != j_other or self._numbers.operation(one) != self._numbers.operation(other):
            return
        for i in operands_in(self._flows.of(one)[j].depends):
            operands = one.invars[i], other.invars[i]
            if self._numbers[operands[0]] != self._numbers[operands[1]]:
                yield operands

    def _origin(self, pair: _Pair) -> PathStep:
        one, other = map(self._describe, pair)
        if one == other:
            return PathStep(f"{one}, of which each replica has its own")
        return PathStep(f"{one} on one replica, {other} on another replica of the same device")

    def _describe(self, atom: Any) -> str:
        if not isinstance(atom, Literal) and atom in self._producers:
            return str(path_step_of(*self._producers[atom]))
        return self._label(atom)
