"""The learning rate: a number that can change at any time, or a schedule over steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import is_tracer
from mirrored.errors import ArgumentError
from mirrored.variables import Variable

Schedule = Callable[[Any], Any]
LearningRateLike = float | jax.Array | Variable | Schedule


class LearningRate:
    """The learning rate of one optimizer.

    A number is stored in a variable. A compiled step reads the variable as state, so a change takes effect without
    retracing. The variable is created together with the optimizer's other state, under the strategy that trains.

    Args:
        given: A number, a variable, or a function of the step (an optax schedule).
        name: The variable's name.
    """

    def __init__(self, given: LearningRateLike, name: str) -> None:
        self._name = name
        self._number = 0.0
        self._variable: Variable | None = None
        self._schedule: Schedule | None = None
        if isinstance(given, Variable):
            self._variable = given
        elif callable(given):
            self._schedule = given
        else:
            self._number = _checked_number(given)

    @property
    def is_schedule(self) -> bool:
        """Whether the learning rate is a function of the step."""
        return self._schedule is not None

    @property
    def variables(self) -> list[Variable]:
        """The variable that holds the number; empty before it is created, and for a schedule."""
        return [] if self._variable is None else [self._variable]

    def build(self) -> None:
        """Creates the variable if the learning rate is a number."""
        if self._variable is None and self._schedule is None:
            self._variable = Variable(
                jnp.asarray(self._number, jnp.result_type(float)), trainable=False, name=self._name
            )
            self._variable.internal = True

    def at(self, step: Any) -> jax.Array:
        """Returns the learning rate at a step."""
        rate = self._schedule(step) if self._schedule is not None else self._held()
        return jnp.asarray(rate).astype(jnp.result_type(float))

    def _held(self) -> Any:
        return self._number if self._variable is None else self._variable.read_value()

    def change(self, value: Any) -> None:
        """Sets the number.

        Raises:
            ArgumentError: The learning rate is a schedule, or `value` is not a number.
        """
        if self._schedule is not None:
            raise ArgumentError(
                "Optimizer.learning_rate",
                found="the optimizer was created with a schedule",
                rule="a schedule determines the learning rate at every step",
                remedy="create the optimizer with a number to assign it later, or let the schedule read a Variable",
            )
        if isinstance(value, Variable):
            value = value.read_value()
        number = None if is_tracer(value) else _checked_number(value)
        if self._variable is None and number is None:
            self.build()
        if self._variable is not None:
            self._variable.assign(value)
        else:
            assert number is not None
            self._number = number

    def __repr__(self) -> str:
        if self._schedule is not None:
            return getattr(self._schedule, "__name__", type(self._schedule).__name__)
        return repr(self._number) if self._variable is None else f"<{self._variable.name}>"


def _checked_number(value: Any) -> float:
    number = float(value) if np.ndim(value) == 0 else math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ArgumentError(
            "Optimizer.learning_rate",
            found=f"learning_rate={value!r}",
            rule="a learning rate is a finite, nonnegative number or a function of the step",
            remedy="write learning_rate=0.001, or an optax schedule such as optax.cosine_decay_schedule(0.1, 1000)",
        )
    return number
