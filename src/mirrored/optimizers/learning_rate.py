"""The learning rate: a number that may be changed at any time, or a schedule over the steps."""

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
    """A learning rate as an optimizer uses it.

    A number is held in a variable, so that a compiled step reads it as state and sees it change without being traced
    again; the variable is made together with the optimizer's other state, under the strategy that trains.

    Args:
        given: A number, a variable, or a function of the step (an optax schedule).
        name: Of the variable.
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
        """Whether it is a function of the step."""
        return self._schedule is not None

    @property
    def variables(self) -> list[Variable]:
        """The variable that holds it, once it is made; nothing for a schedule."""
        return [] if self._variable is None else [self._variable]

    def build(self) -> None:
        """Makes the variable, if there is to be one."""
        if self._variable is None and self._schedule is None:
            self._variable = Variable(
                jnp.asarray(self._number, jnp.result_type(float)), trainable=False, name=self._name
            )
            self._variable.internal = True

    def at(self, step: Any) -> jax.Array:
        """Its value at a step."""
        rate = self._schedule(step) if self._schedule is not None else self._held()
        return jnp.asarray(rate).astype(jnp.result_type(float))

    def _held(self) -> Any:
        return self._number if self._variable is None else self._variable.read_value()

    def change(self, value: Any) -> None:
        """Sets another number.

        Raises:
            ArgumentError: It is a schedule, or `value` is not a number.
        """
        if self._schedule is not None:
            raise ArgumentError(
                "Optimizer.learning_rate",
                found="the optimizer was made with a schedule",
                rule="a schedule alone says what the rate is at each step",
                remedy="make the optimizer with a number to set it by hand, or let the schedule read a Variable",
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
            rule="a learning rate is a finite number, not negative, or a function of the step",
            remedy="write learning_rate=0.001, or an optax schedule such as optax.cosine_decay_schedule(0.1, 1000)",
        )
    return number
