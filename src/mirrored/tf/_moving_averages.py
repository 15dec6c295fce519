"""`tf.train.ExponentialMovingAverage`: exponential moving averages of variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from mirrored._typing import Operand
from mirrored.optimizers.gradient_merge import scope_of
from mirrored.variables import Variable, VariableAggregation


@dataclasses.dataclass(frozen=True)
class _Averaged:
    """A variable that has an average, as checkpoints see it: a group of one variable, which shares no state."""

    variables: tuple[Variable, ...]
    shared: Mapping[str, Variable]

    @property
    def in_slot_order(self) -> tuple[Variable, ...]:
        """The variable."""
        return self.variables


@dataclasses.dataclass(frozen=True)
class _Made:
    """The state that exists so far, for checkpoints: the step count, and the variables that have averages."""

    scalars: Mapping[str, Variable]
    groups: tuple[_Averaged, ...]


class ExponentialMovingAverage:
    """Maintains exponential moving averages of variables; each call of `apply` updates the averages.

    An update is ``average = decay * average + (1 - decay) * variable``.

    Context: any. In replica context each `apply` counts once; values that vary over replicas are averaged first.

    Args:
        decay: The weight of the old average, in [0, 1].
        num_updates: A number, or a variable with the step count: limits the decay to
            ``(1 + num_updates) / (10 + num_updates)``, so that early averages move faster.
        zero_debias: Starts averages at zero and corrects the bias: the first average is the value itself.
        name: The last part of the names of the averages: ``w/ExponentialMovingAverage``.

    Example:
        >>> import mirrored.tf as tf
        >>> average, w = tf.train.ExponentialMovingAverage(0.75), tf.Variable(1.0)
        >>> average.apply([w])
        >>> _ = w.assign(5.0)
        >>> average.apply([w])
        >>> float(average.average(w))
        2.0

    A checkpoint saves the averages like the slots of an optimizer, under the names of their variables, and makes them
    when it is restored before the first `apply`.

    TensorFlow: `tf.train.ExponentialMovingAverage`. `zero_debias` corrects all averages, not only those of tensors.
    """

    def __init__(
        self,
        decay: float,
        num_updates: Operand | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay, self._num_updates, self._zero_debias = decay, num_updates, zero_debias
        self._name = name
        self._averages: dict[int, tuple[Variable, Variable, Variable | None]] = {}

    @property
    def name(self) -> str:
        """The last part of the average variables' names, by default ``"ExponentialMovingAverage"``."""
        return self._name

    def apply(self, var_list: Sequence[Variable] | None = None) -> None:
        """Updates the moving average of each variable with the variable's current value.

        Args:
            var_list: Variables of floating dtype; None uses those of the last call.

        Raises:
            TypeError: A variable does not have a floating dtype.
        """
        for variable in [kept[0] for kept in self._averages.values()] if var_list is None else var_list:
            if not jnp.issubdtype(variable.dtype, jnp.floating):
                raise TypeError(f"The variables must be floating point, not {variable.dtype}: {variable.name}")
            self._move(variable)

    def _move(self, variable: Variable) -> None:
        _, average, weight = self._kept_for(variable) or self._started(variable)
        keep = self._kept()
        average.assign(average * keep + variable.read_value() * (1 - keep))
        if weight is not None:
            weight.assign(weight * keep + (1 - keep))

    def _kept_for(self, variable: Variable) -> tuple[Variable, Variable, Variable | None] | None:
        """Returns the variable, its average and the average's weight; None if `variable` has no average."""
        kept = self._averages.get(id(variable))
        if kept is None or kept[0] is not variable:  # a copy of this object has copies of the variables, with other ids
            self._averages = {id(one[0]): one for one in self._averages.values()}
            kept = self._averages.get(id(variable))
        return kept

    def _started(self, variable: Variable) -> tuple[Variable, Variable, Variable | None]:
        name = f"{variable.name.partition(':')[0]}/{self._name}"
        start = jnp.zeros(variable.shape, variable.dtype) if self._zero_debias else variable.read_value()
        # A sync-on-read variable varies over replicas: the average moves towards its mean over replicas.
        mean = VariableAggregation.MEAN
        average = Variable(start, trainable=False, name=name, aggregation=mean)
        weight = Variable(0.0, trainable=False, name=f"{name}/weight", aggregation=mean) if self._zero_debias else None
        self._averages[id(variable)] = (variable, average, weight)
        return self._averages[id(variable)]

    def _kept(self) -> Any:
        if self._num_updates is None:
            return self._decay
        steps = jnp.asarray(self._num_updates, jnp.float32)
        return jnp.minimum(self._decay, (1 + steps) / (10 + steps))

    def average(self, var: Variable) -> Any:
        """Returns the moving average of a variable; None if `apply` was never called for the variable.

        It is a variable, or a tensor with `zero_debias`.
        """
        kept = self._kept_for(var)
        if kept is None:
            return None
        _, average, weight = kept
        return average if weight is None else average.read_value() / weight.read_value()

    def average_name(self, var: Variable) -> str:
        """Returns the name of the variable that holds the moving average of `var`."""
        kept = self._kept_for(var)
        return f"{var.name.partition(':')[0]}/{self._name}" if kept is None else kept[1].name

    # Checkpoints: the averages are slots of their variables.

    def made(self) -> _Made:
        """Returns the state that exists so far, for checkpoints, without creating any."""
        steps = {"_num_updates": self._num_updates} if isinstance(self._num_updates, Variable) else {}
        return _Made(steps, tuple(_Averaged((kept[0],), {}) for kept in self._averages.values()))

    def slots(self, variable: Variable) -> Mapping[str, Any]:
        """Returns the average of a variable and, with `zero_debias`, its weight, for checkpoints."""
        kept = self._kept_for(variable)
        named = {} if kept is None else {"average": kept[1], "weight": kept[2]}
        return {label: one for label, one in named.items() if one is not None}

    def build(self, var_list: Sequence[Variable]) -> None:
        """Creates the averages of variables, for a restore before the first `apply`."""
        with scope_of(var_list):
            for variable in var_list:
                if self._kept_for(variable) is None:
                    self._started(variable)
