"""Where the values of two local replicas first went different ways."""

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
    """Two values that different numbers were given to, followed back to what made them different.

    Args:
        jaxpr: The body into which both replicas were traced.
        numbers: Its value numbers.
        flows: The flows of its equations.
        label: What to call an input, or a constant.
    """

    def __init__(self, jaxpr: Any, numbers: ValueNumbering, flows: DataflowRules, label: Callable[[Any], str]) -> None:
        self._numbers = numbers
        self._flows = flows
        self._label = label
        self._producers = {var: (eqn, j) for eqn in jaxpr.eqns for j, var in enumerate(eqn.outvars)}

    def trail(self, one: Any, other: Any) -> list[PathStep]:
        """The shortest path from the origin of the difference to `one`."""
        came_from: dict[tuple[int, int], tuple[_Pair, PathStep] | None] = {self._key((one, other)): None}
        waiting = deque([(one, other)])
        while waiting:
            pair = waiting.popleft()
            operands = list(self._differing_operands(pair))
            if not operands:
                return [self._origin(pair), *self._steps(pair, came_from)]
            step = path_step_of(*self._producers[pair[0]])
            for operand in operands:
                if self._key(operand) not in came_from:
                    came_from[self._key(operand)] = (pair, step)
                    waiting.append(operand)
        raise AssertionError("every value of a jaxpr comes from its inputs")

    def _key(self, pair: _Pair) -> tuple[int, int]:
        return self._numbers[pair[0]], self._numbers[pair[1]]

    def _steps(
        self, pair: _Pair, came_from: dict[tuple[int, int], tuple[_Pair, PathStep] | None]
    ) -> Iterator[PathStep]:
        while (way := came_from[self._key(pair)]) is not None:
            pair, step = way
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
            return PathStep(f"{one}, which every replica has its own of")
        return PathStep(f"{one} in one replica, {other} in another of the same device")

    def _describe(self, atom: Any) -> str:
        if not isinstance(atom, Literal) and atom in self._producers:
            return str(path_step_of(*self._producers[atom]))
        return self._label(atom)
