"""Runs several steps of a function in one call, as one `lax.scan` over the batches; collects the steps' results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import has_host_dtype
from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.runtime.staged_values import with_gradients_to_old
from mirrored.values.distributed_values import PerReplica

if TYPE_CHECKING:
    from mirrored.compilation.program import Result


_NUMBERS: Final = (bool, int, float, complex)


@dataclasses.dataclass(frozen=True)
class Scan:
    """One `lax.scan` that runs several steps in one call, over one batch per step.

    Attributes:
        step: Computes a step from the variables' values, other captured arrays, and the arrays of a batch.
        steps: The number of steps.
        carry: The places of the assigned variables among the variables' values.
        results: The results of a step that are arrays.
        derived: The places of the variables whose values keep their derivatives from one step to the next. For a tape
            around the call, gradients of the other variables' values flow to the variables (`with_gradients_to_old`).
    """

    step: Callable[..., list[Any]]
    steps: int
    carry: Sequence[int]
    results: Sequence[Result]
    derived: Set[int]

    def __call__(self, state: Sequence[Any], outer: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Traces the steps; returns the variables' last values, followed by the results of all steps.

        Results have a leading dimension of steps; for per-replica results, it follows the dimension of replicas.
        """
        count = len(inputs) // self.steps
        per_step = [jnp.stack(inputs[i::count]) for i in range(count)]

        def body(carried: Sequence[Any], xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            now = list(state)
            for place, value in zip(self.carry, carried, strict=True):
                of_variable = place not in self.derived and jnp.issubdtype(value.dtype, jnp.inexact)
                now[place] = with_gradients_to_old(value, state[place]) if of_variable else value
            outs = self.step(now, outer, xs)
            return outs[: len(self.carry)], outs[len(self.carry) :]

        last, results = jax.lax.scan(body, [state[place] for place in self.carry], per_step, length=self.steps)
        moved = [
            jnp.moveaxis(value, 0, 1) if result.is_per_replica else value
            for value, result in zip(results, self.results, strict=True)
        ]
        return [*last, *moved]


def stacked_steps(results: Sequence[PyTree]) -> Any:
    """Stacks the results of several steps along a new leading dimension, for steps that ran without a `Scan`.

    Arrays have a leading dimension of steps, in each component of a per-replica result. Of other results (Python
    numbers, strings, variables), that of the first step is returned, as a program does, whose trace is one step.
    """
    return tree_map(_stacked, *results, is_leaf=lambda value: isinstance(value, PerReplica))


def _stacked(*steps: Leaf) -> Any:
    first = steps[0]
    if not isinstance(first, PerReplica):
        return jnp.stack(steps) if _is_array(first) else first
    where = first.device_assignment
    if where is not None and all(step.is_stacked for step in steps):
        return first.with_stacked(jnp.stack([step.stacked(where) for step in steps], axis=1))
    # Python numbers differ here between replicas. No program returns such a result, so it keeps all steps.
    components = zip(*(step.values for step in steps), strict=True)
    stacked = [jnp.stack(parts) if isinstance(parts[0], _NUMBERS) else _stacked(*parts) for parts in components]
    return PerReplica.of_components(stacked, where)


def _is_array(value: Leaf) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic)) and not has_host_dtype(value)
